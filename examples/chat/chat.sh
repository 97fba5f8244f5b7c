#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A chat model in a few minutes on a CPU: reads a story, learns from conversations how to answer, and answers. Everything that
# it writes is in build/chat.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")"
sherd=${SHERD:-../../sherd} out=../../build/chat
mkdir -p $out

# A text, and conversations of which the answers are targets, in tokens.
$sherd tokenize --tokenizer tokenizer.json --end '<|end_of_text|>' --out $out/story.bin ../tiny.txt
$sherd tokenize --tokenizer tokenizer.json --out $out/talks.bin talks.jsonl

$sherd train story.toml --set train.out=$out/story
$sherd train talk.toml --set train.out=$out/talk

$sherd eval $out/story/step-150 --device cpu --data ../tiny.txt
for question in 'Where is the shop?' 'Who sweeps the floor?'; do
  echo "$question"
  $sherd generate $out/talk/step-100 --device cpu --max-tokens 60 \
    --prompt $'<|im_start|>user\n'"$question"$'<|im_end|>\n<|im_start|>assistant\n'
done
