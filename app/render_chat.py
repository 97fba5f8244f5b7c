#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders the conversations of a JSONL file with a chat template: render_chat.py TEMPLATE_OR_FOLDER IN OUT

Each line of IN has "messages". Each line of OUT has "segments", whose texts together are the rendered conversation; those
of the assistant's turns are the targets."""
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %}, which some templates have around the assistant's words: only the words."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def refuse(text):
    sys.exit(f"[tokenize] {text}")


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        refuse(f"{path}: {error}")


def special_tokens(folder):
    """By name, such as eos_token, for the template."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.exists() else {}
    words = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items() if key.endswith("_token")}
    return {key: value for key, value in words.items() if isinstance(value, str)}, config.get("chat_template")


def read_template(place):
    """The template's text, and the special tokens that it may use."""
    if place.is_file():
        return place.read_text(), special_tokens(place.parent)[0]
    tokens, template = special_tokens(place)
    if (place / "chat_template.jinja").exists():
        template = (place / "chat_template.jinja").read_text()
    if isinstance(template, list):  # several with names
        template = next((one["template"] for one in template if one["name"] == "default"), None)
    if not isinstance(template, str):
        refuse(f"{place} has neither chat_template.jinja nor a chat_template in tokenizer_config.json: give --template FILE")
    return template, tokens


def complain(text):
    raise jinja2.TemplateError(text)


def compile_template(text):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                               extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = complain
    return environment.from_string(text)


def segments_of(render, messages):
    """Up to each of the assistant's turns, what the template puts before it, and the turn."""
    whole, segments, done = render(messages, False), [], 0

    def add(end, targets):
        nonlocal done
        if end > done:
            segments.append({"text": whole[done:end], "targets": targets})
            done = end

    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, turn = render(messages[:i], True), render(messages[:i + 1], False)
        if not whole.startswith(before) or not whole.startswith(turn) or len(before) < done:
            raise jinja2.TemplateError("the template renders a conversation otherwise when further messages follow, so the "
                                       "assistant's words can't be found in it")
        add(len(before), False)
        add(len(turn), True)
    add(len(whole), False)
    return segments


def main():
    place, source, out = (pathlib.Path(word) for word in sys.argv[1:])
    text, tokens = read_template(place)
    try:
        template = compile_template(text)
    except jinja2.TemplateError as error:
        refuse(f"the chat template of {place}: {error}")

    def render(messages, prompt):
        return template.render(messages=messages, add_generation_prompt=prompt, **tokens)

    with open(source, encoding="utf-8") as lines, open(out, "w", encoding="utf-8") as rendered:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                messages = json.loads(line)["messages"]
                if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
                    raise ValueError('"messages" is a list of objects with "role" and "content"')
                segments = segments_of(render, messages)
                if not any(one["targets"] for one in segments):
                    raise ValueError("it has no message of the assistant, so nothing is to be learned from it")
            except KeyError as error:
                refuse(f"{source}:{number}: there is no {error}: all lines of the file have \"messages\"")
            except (ValueError, TypeError, jinja2.TemplateError) as error:
                refuse(f"{source}:{number}: {error}")
            rendered.write(json.dumps({"segments": segments}) + "\n")


if __name__ == "__main__":
    main()
