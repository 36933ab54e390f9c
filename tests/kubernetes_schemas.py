"""Schemas of Kubernetes' custom resources, from the definitions in the data folder, without room for unknown fields."""

import yaml


def strict(schema):
    """Return the schema without room for fields it does not know: Kubernetes drops those silently."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def schema_of(definition, version):
    """Return the strict schema of a version in a CustomResourceDefinition's file."""
    crd = yaml.load(definition.read_text(), Loader=yaml.CSafeLoader)
    [found] = [one for one in crd["spec"]["versions"] if one["name"] == version]
    schema = strict(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # the CRD leaves it to Kubernetes
    return schema
