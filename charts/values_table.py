"""Prints the table of values in chainscope/README.md, from the comments of values.yaml and the descriptions of
values.schema.json. Run by charts/sync.

A row is a leaf of values.yaml. Its description is the comment above the key, else the description of its property in the
schema, else that of the definition to which the property refers."""

import json
import pathlib
import sys

import yaml

CHART = pathlib.Path(__file__).parent / "chainscope"


def comment_above(lines, number):
    """The comment lines directly above a line, as one text. Blank lines and rulers end it."""
    found = []
    while number > 0 and (text := lines[number - 1].strip()).startswith("#") and not text.startswith("# ---"):
        found.insert(0, text.removeprefix("#").strip())
        number -= 1
    return " ".join(found)


def resolve(schema, property_schema):
    """Descriptions of a property, most specific first, and the schema with its definition merged in."""
    descriptions = [property_schema["description"]] if "description" in property_schema else []
    if reference := property_schema.get("$ref"):
        definition = schema["definitions"][reference.rpartition("/")[2]]
        more, resolved = resolve(schema, definition)
        return descriptions + more, resolved
    return descriptions, property_schema


def rows(node, schema, property_schema, lines, path=()):
    for key, value in node.value:
        name = (*path, key.value)
        sub = property_schema.get("properties", {}).get(key.value, {})
        descriptions, resolved = resolve(schema, sub)
        if text := comment_above(lines, key.start_mark.line):
            descriptions.insert(0, text)
        # Mappings of which the schema lists the keys are groups of values; others, and Kubernetes objects, are values.
        group = isinstance(value, yaml.MappingNode) and value.value and "properties" in resolved
        if group and not name[-1].lower().endswith("securitycontext"):
            yield from rows(value, schema, resolved, lines, name)
        else:
            yield ".".join(name), value, descriptions


def plain(node):
    return yaml.safe_load(yaml.serialize(node))


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def main():
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    undocumented = []
    print("| value | default | |\n| --- | --- | --- |")
    for name, node, descriptions in rows(yaml.compose(text), schema, schema, text.splitlines()):
        if not descriptions:
            undocumented.append(name)
            continue
        print(f"| `{name}` | `{cell(json.dumps(plain(node)))}` | {cell(descriptions[0])} |")
    if undocumented:
        sys.exit(f"charts: without a comment in values.yaml or a description in values.schema.json: {', '.join(undocumented)}")


main()
