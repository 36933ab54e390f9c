"""The tracks of one video, camera or stream: identities, counts and track files."""

from collections import Counter
from pathlib import Path

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import distinct_stem
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.plugins.streams.track_files import TrackedVideo, TrackStore, write_track_files
from efficientdet.plugins.streams.tracker import USUAL_FPS, Tracker
from efficientdet.tracking.lines_and_zones import TrackCounts, TrackSettings
from object_detection.coco.results import DetectionRows


class VideoTracks:
    """The tracks of one video. Only files keep all boxes; what it holds in memory is of the tracks that have not ended.

    Attributes:
        counts: the counts of lines and zones.
    """

    def __init__(
        self,
        settings: TrackSettings,
        thresholds: ScoreThresholds,
        class_names: ClassNames,
        *,
        frames_per_second: float = USUAL_FPS,
    ):
        """Start without tracks.

        Args:
            settings: lines, zones and formats.
            thresholds: scores from which detections begin a track.
            class_names: names of the categories.
            frames_per_second: frame rate of the source.
        """
        self.counts = TrackCounts(lines=settings.lines, zones=settings.zones)
        self._settings, self._class_names, self._rate = settings, class_names, frames_per_second
        self._tracker = Tracker(thresholds, frames_per_second=frames_per_second)
        self._store = TrackStore() if settings.formats else None
        self._totals: Counter[int] = Counter()  # tracks by category id
        self._last_id, self._frames, self._size = 0, 0, (0, 0)

    def update(self, rows: DetectionRows, pixels: np.ndarray, seconds: float) -> DetectionRows:
        """Return the detections of the next frame that belong to a track, with `track_ids`.

        Args:
            rows: all detections, also those below the threshold.
            pixels: the frame [h, w, 3].
            seconds: time of the frame.
        """
        self._frames += 1
        self._size = self._size if self._frames > 1 else pixels.shape[:2]
        tracked = self._tracker.update(rows, seconds)
        self.counts.update(tracked, self._class_names, live_ids=self._tracker.live_ids, size=pixels.shape[:2])
        assert tracked.track_ids is not None
        self._totals.update(tracked.category_ids[tracked.track_ids > self._last_id].tolist())
        self._last_id = max(self._last_id, int(tracked.track_ids.max(initial=0)))
        if self._store is not None:
            self._store.add(tracked, frame=self._frames, seconds=seconds)
        return tracked

    def write(self, name: str, *, replace: bool = True) -> list[Path]:
        """Write the track files, and return their paths.

        Args:
            name: name of the video without suffix.
            replace: files of this name are replaced; else the name gets a number if one exists.
        """
        if self._store is None:
            return []
        folder, formats = self._settings.folder, self._settings.formats
        if not replace:
            used = {path.stem.casefold() for one in formats for path in (folder / one).glob("*")}
            name = distinct_stem(name, used)
        video = TrackedVideo(
            name=name,
            size=self._size,
            frames=self._frames,
            frames_per_second=self._rate,
            class_names=self._class_names,
            counts=self.counts.to_json(),
        )
        return write_track_files(folder, video, self._store, formats=formats)

    def close(self) -> None:
        """Remove the temporary file."""
        if self._store is not None:
            self._store.close()

    def __str__(self) -> str:
        name_of = dict(zip(self._class_names.category_ids, self._class_names.names, strict=True))
        listed = ", ".join(f"{name_of[number]} {count:,}" for number, count in self._totals.most_common())
        total = f"tracks: {self._totals.total():,}" + (f" ({listed})" if listed else "")
        return "\n".join([total, *map(str, self.counts.all)])
