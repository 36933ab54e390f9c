"""The plan of a quick start: images or tiles for the network, and the time of everything on this machine."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dataset.records.labeled_images import LabeledImages
from efficientdet.families.quickstart_recipe import QuickstartRecipe, StartRecipe
from efficientdet.families.registry import hyperparameters_of
from efficientdet.quickstart import choices
from efficientdet.quickstart.configuration import QuickstartConfig
from efficientdet.quickstart.initial_weights import InitialWeights
from efficientdet.quickstart.shown_images import ShownImages, evaluated_count, shown_images
from efficientdet.quickstart.step_timing import measure_step_time


class Plan(NamedTuple):
    """Images or tiles for the network, and the budget of the training.

    after, of_folds: seconds of the steps after the choice, and of the folds beside their trainings; others: of all
    steps but training.
    """

    shown: ShownImages
    budget: choices.Budget
    after: float
    of_folds: float
    others: float


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Data, recipe and measured speed, from which plans are made."""

    config: QuickstartConfig
    images: LabeledImages
    measured_on: str  # pattern of the records that the AP is measured on
    recipe: QuickstartRecipe
    start_recipe: StartRecipe
    step_time: choices.StepTime
    start_seconds: float
    spent: float  # seconds so far

    @classmethod
    def measured(
        cls,
        config: QuickstartConfig,
        folder: Path,
        images: LabeledImages,
        settings: dict[str, Any],
        *,
        weights: InitialWeights,
        side: int,
        measured: str,
        spent: float,
    ) -> "Planner":
        """Measure a training step with these settings, whose input has this longer side.

        measured: pattern of the records that the AP is measured on. spent: seconds so far.
        """
        begin = time.monotonic()
        step_time, start = measure_step_time(
            config, folder, settings, weights=weights.flags, side=side, images=len(images)
        )
        recipe = hyperparameters_of(config.model_name, {}).family.quickstart
        return cls(
            config=config,
            images=images,
            measured_on=measured,
            recipe=recipe,
            start_recipe=recipe.start(weights.kind),
            step_time=step_time,
            start_seconds=start,
            spent=spent + time.monotonic() - begin,
        )

    def image_ms(self, side: int) -> float:
        """Return the milliseconds of detection in an input of this side."""
        return 1000 * self.recipe.evaluation_cost * self.step_time.at(side) / self.step_time.batch_size

    def plan(self, settings: dict[str, Any]) -> Plan:
        """Return the plan for complete images, or for tiles of a `tile_size` in the settings."""
        shown = shown_images(self.images, settings)
        after = choices.seconds_after_choice(
            self.start_seconds,
            formats=len(self.config.formats),
            measured_images=evaluated_count(self.measured_on, settings),
            step_time=self.step_time,
            evaluation_cost=self.recipe.evaluation_cost,
        )
        of_folds = choices.seconds_of_folds(self.config.folds, self.start_seconds)
        others = self.spent + after + of_folds
        budget = choices.Budget(
            step_time=self.step_time,
            seconds=choices.training_seconds(self.config.minutes, others=others),
            start_seconds=self.start_seconds,
            target_steps=self.start_recipe.steps,
            object_share=choices.object_share(shown.images),
            min_side=self.recipe.min_side,
            smaller_input_first=self.start_recipe.smaller_input_first,
        )
        return Plan(shown, budget.of_fold(self.config.folds), after, of_folds, others)
