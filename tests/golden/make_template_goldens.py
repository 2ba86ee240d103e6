#!/usr/bin/env python3
"""Writes tests/golden/chat_templates.json: chat templates rendered by Jinja2 as Hugging Face sets it up.

    python3 make_template_goldens.py MODEL.gguf [OUTPUT_FOLDER]

Needs the package `jinja2`. "templates" holds whole chat templates (the model's own, and others written here in
the manner of the well-known families) and what each makes of every conversation; "snippets" holds single
expressions and statements. A failure of Jinja2 is "raised" with its words if the template raised it, and
otherwise "fails".
"""

import datetime
import json
import sys
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(Path(__file__).parent))
from make_tokenizer_goldens import read_metadata  # noqa: E402

NOW = 1709210096  # 29 February 2024, 12:34:56 UTC

TEMPLATES = {
    "chatml": """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
""",
    "chatml_with_default": """{%- set default = 'You answer in one sentence.' -%}
{%- if messages and messages[0].role == 'system' -%}
    {%- set system = messages[0].content | trim -%}{%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = default -%}{%- set rest = messages -%}
{%- endif -%}
<|im_start|>system
{{ system }}<|im_end|>
{% for m in rest -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt -}}
""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles have to alternate, user first: ' ~ message['role'] ~ ' at ' ~ loop.index) }}
    {% endif %}
    {% if loop.index0 == 0 and system_message != false %}
        {% set content = '<<SYS>>\\n' + system_message.strip() + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}
        {% set content = message['content'] %}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {% endif %}
{% endfor %}
""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "llama3_dated": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message stands first, with the date. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("user and assistant must take turns") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- elif message == user_messages[-1] %}
            {{- "[INST](last) " + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("only user and assistant, with a system message first") }}
    {%- endif %}
{%- endfor %}
""",
    "qwen": """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' + (tool_call.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "thinking": """{%- set ns = namespace(last_query=-1, multi=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and not (message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- else %}{%- set thought = '' %}{%- endif %}
        {%- if loop.index0 > ns.last_query and thought %}
            {{- '<a><think>\\n' ~ thought ~ '\\n</think>\\n\\n' ~ content ~ '</a>' }}
        {%- else %}
            {{- '<a>' ~ content ~ '</a>' }}
        {%- endif %}
    {%- else %}
        {{- '<' ~ message.role | upper ~ '>' ~ message.content ~ '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<a>
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}
{%- endif %}""",
    "macros": """{% macro turn(role, content='', end='<end>') -%}
<{{ role | capitalize }}>{{ content.strip() }}{{ end }}
{%- endmacro %}
{% macro all(list) %}
  {% for m in list %}
    {% if m.content is string %}
      {{- turn(m.role, m.content, end='' if loop.last and not add_generation_prompt else '<end>') }}
    {% endif %}
  {% endfor %}
{% endmacro %}
{{ all(messages) }}{% if add_generation_prompt %}{{ turn('assistant', end='') }}{% endif %}""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('There is no system role') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Turns must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "alpaca": """{% for m in messages if m.role != 'tool' %}
{% if m.role == 'system' %}
{{ m.content }}

{% elif m.role == 'user' %}
### Instruction:
{{ m.content | trim }}

{% else %}
### Response:
{{ m.content }}

{% endif %}
{% else %}
(nothing was said)
{% endfor %}
{% if add_generation_prompt %}
### Response:
{% endif %}
""",
    "vicuna": """{%- for m in messages -%}
  {%- if m['role'] == 'system' -%}{{ m['content'] + ' ' }}
  {%- elif m['role'] == 'user' -%}{{ 'USER: ' + m['content'] + ' ' }}
  {%- elif loop.previtem is defined and loop.previtem.role == 'user' -%}{{ 'ASSISTANT: ' + m['content'] + (eos_token if not loop.last else '') }}
  {%- else -%}{%- continue -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role == 'user' %} ASSISTANT:{% endif %}""",
    "plus_signs": """  {%+ if true +%}
kept
  {%- endif +%}

   {# a comment goes with its line #}
  {% for m in messages %}
    {{ loop.index }}/{{ loop.length }}: {{ m.content | replace('\\n', '\\\\n') }}
  {% endfor %}
  {% raw %}{{ not an expression }}{% endraw %}

end   {{- ' x ' -}}   .
""",
    "json": """{% set turns = [] %}{% for m in messages %}{% set turns = turns + [{'who': m.role, 'text': m.content, 'n': loop.index, 'last': loop.last}] %}{{ {'who': m.role, 'text': m.content, 'n': loop.index, 'last': loop.last} | tojson }}
{% endfor %}
{{ messages | tojson(indent=2) }} {{ messages | map(attribute='role') | join(', ') }} {{ messages | map('length') | list }}""",
}

CONVERSATIONS = [
    [],
    [("user", "Hello!")],
    [("system", "You are terse."), ("user", "What is 2 + 2?")],
    [("user", "Hi"), ("assistant", "Hello. How can I help?"), ("user", "Tell me a joke.")],
    [("system", "  Spaces around.  \n"), ("user", "\n\ttabs and lines\n\n"), ("assistant", " yes \n"), ("user", " more ")],
    [("user", "Grüße, 世界 👩🏽‍🚀 \u00a0 ü\u0308"), ("assistant", "«Добрый день» \"quoted\" 'single' back\\slash"), ("user", "\u2028\x1f\u3000")],
    [("assistant", "I go first."), ("user", "No.")],
    [("user", "one"), ("user", "two")],
    [("user", "{{ not a template }} {% raw %} <|im_end|>"), ("assistant", "</s><s>[INST]")],
    [("system", ""), ("user", ""), ("assistant", ""), ("user", "")],
    [("tool", "result: 42"), ("user", "and?")],
    [("user", "think"), ("assistant", "<think>\nhm\n</think>\n\nanswer"), ("user", "again"), ("assistant", "<think>so</think>done")],
]

SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ 1.0 }} {{ 1.5e3 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1e300 * 1e10 }} {{ 10 / 5 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 3.0 == 3 }}
{{ 1_000 }} {{ 0 }} {{ 00 }} {{ -3 | abs }} {{ -3.5 | abs }} {{ (-3) | abs }} {{ +4 }} {{ - - 4 }} {{ not not 4 }}
{{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ true + 1 }} {{ true and 3 }} {{ 0 or 'x' }} {{ '' or none }} {{ 1 and 0 }} {{ not none }}
{{ 'a' 'b' "c" }} {{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'x' * -1 }}|
{{ 'tab\tnl\\n quote\' \x41 \u00e9 \U0001F600 \101 \q' }} {{ "d'q" }} {{ 'a\
b' }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 'a' == 1 }} {{ [1,2] == [1,2] }} {{ [1] == (1,) }} {{ (1,2) == (1,2) }} {{ [1,2] < [1,3] }} {{ none == none }} {{ {'a': 1} == {'a': 1.0} }} {{ 1 != 2 }} {{ undefined_a == undefined_b }} {{ x == none }}
{{ 1 in [1,2] }} {{ 3 not in [1,2] }} {{ 'a' in 'cat' }} {{ '' in '' }} {{ 'k' in {'k': 1} }} {{ 'v' in {'k': 'v'} }} {{ not 'a' in 'b' }} {{ 'a' in x }} {{ 1 in (1,) }} {{ [1] in [[1]] }}
{{ [1, 'a', none, 1.5, true, [2], (3,), (), {'k': "it's"}, 'q"\'', 'é\n\x01\u200b'] }}
{{ (1, 2) }} {{ 1, 2 }} {{ () }} {{ {} }} {{ [] }} {{ {'a': {'b': [1]}, 'c': x} }} {{ [x] }}
{{ {'a': 1, 'b': 2, 'a': 3} }} {{ {'a': 1}.a }} {{ {'a': 1}['a'] }} {{ {'a': 1}.b }}| {{ {'a': 1}['b'] is defined }} {{ {'a': none}.a is none }}
{{ [1,2,3][0] }} {{ [1,2,3][-1] }} {{ [1,2,3][5] }}| {{ [1,2,3][1:] }} {{ [1,2,3][:-1] }} {{ [1,2,3][::-1] }} {{ [1,2,3][::2] }} {{ [1,2,3][5:] }} {{ [1,2,3][-2:9] }} {{ [1,2,3,4,5][3:0:-1] }} {{ (1,2,3)[1:] }} {{ [1,2,3][none:2] }} {{ [1,2,3][-9:2] }} {{ [1,2,3][9:-9:-1] }}
{{ 'héllo'[1] }} {{ 'héllo'[-1] }} {{ 'héllo'[1:3] }} {{ 'héllo'[::-1] }} {{ '世界和平'[2:] }} {{ 'abc'[7] }}| {{ 'abc'.0 }} {{ [[1,2],[3]].0.1 }} {{ 'abc'[true] }}
{{ [1,2,3][::0] }}
{{ x[1:] }}
{{ none[1:] }}
{{ 5[1:] }}
{{ none.a }}| {{ none['a'] }}| {{ 5 .a }}| {{ 'abc'.nothing }}| {{ 'abc'['nothing'] }}|
{{ x }}| {{ x.y }}
{{ x['y'] }}
{{ x + 1 }}
{{ 1 + x }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1 < 'a' }}
{{ x < 1 }}
{{ -'a' }}
{{ [1] + (2,) }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ 'a' in none }}
{{ 'yes' if true }} {{ 'yes' if false }}| {{ 'a' if 0 else 'b' if 0 else 'c' }} {{ ('a' if 1 else 'b') ~ 'c' }} {{ 1 if x is defined else 2 }}
{{ x is defined }} {{ x is undefined }} {{ x is not defined }} {{ 1 is defined }} {{ none is none }} {{ 1 is not none }} {{ x is none }} {{ not x is defined }} {{ messages is defined and true }} {{ 6 is divisibleby(3) is defined }}
{{ 'a' is string }} {{ 1 is string }} {{ {} is mapping }} {{ [] is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ x is iterable }} {{ {} is sequence }} {{ 'a' is sequence }} {{ 1 is sequence }} {{ 1 is number }} {{ true is number }} {{ 1.5 is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ 1 is float }} {{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }}
{{ 3 is odd }} {{ 3 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is in [1] }} {{ 'a' is in 'b' }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ '12' is upper }} {{ none is sameas none }} {{ 1 is not in [2] }} {{ 1 is gt(0) and 1 is lessthan(2) }}
{{ '  a b \n' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 12 | trim }} {{ none | trim }} {{ x | trim }}| {{ '\u3000\x1fa\u200b' | trim | length }}
{{ 'abc' | length }} {{ '世界👍' | length }} {{ [1,2] | count }} {{ {'a':1} | length }} {{ x | length }} {{ (1,2) | length }}
{{ 5 | length }}
{{ none | length }}
{{ 'aBc' | upper }} {{ 'aBc' | lower }} {{ 'straße ŉ ǆ' | upper }} {{ 'ÀÉΣΑΣ İ' | lower }} {{ 'hELLO wORLD' | capitalize }} {{ 'ßx' | capitalize }} {{ 'ǆX' | capitalize }} {{ "hello wORLD it's a-b (c) [d] x_y é1a" | title }} {{ '' | capitalize }}| {{ 5 | upper }} {{ none | lower }}
{{ [1, 'a', none] | join(', ') }} {{ [1,2] | join }} {{ 'abc' | join('-') }} {{ [] | join(',') }}| {{ x | join(',') }}| {{ [{'a': 1}, {'a': 2}] | join('+', attribute='a') }} {{ {'a':1,'b':2} | join(',') }} {{ [[1],[2]] | join('/') }} {{ [1,2] | join(0) }}
{{ 5 | join }}
{{ x | default('d') }} {{ none | default('d') }} {{ none | default('d', true) }} {{ '' | d('e', true) }} {{ '' | default('e') }}| {{ x | default }}| {{ 0 | default(1, boolean=true) }} {{ x.y | default('z') }}
{{ x | default('d') | upper }} {{ x | default(none) }} {{ x | default([]) | length }} {{ x | default(default_value=3) }}
{{ 'aaa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'abc' | replace('', '-') }} {{ 121 | replace(1, 'x') }} {{ 'a.b' | replace('.', '\\') }} {{ 'abc'.replace('b', '') }} {{ 'aaaa'.replace('aa', 'a') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ 'aé'.replace('', '.') }} {{ ''.replace('', 'x') }}
{{ [1,2] | first }} {{ [1,2] | last }} {{ [] | first }}| {{ 'héé' | last }} {{ 'éa' | first }} {{ '' | first }}| {{ x | first }}| {{ {'a':1} | first }}
{{ 'ab' | list }} {{ {'a':1} | list }} {{ (1,2) | list }} {{ x | list }} {{ 'ab' | reverse }} {{ [1,2] | reverse | list }} {{ {'a': 1} | items | list }} {{ x | items | list }}
{{ none | list }}
{{ 5 | items | list }}
{{ 5 | string + 'a' }} {{ [1] | string }} {{ '12' | int + 1 }} {{ ' 12 ' | int }} {{ '1_0' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '1.9' | int }} {{ 1.9 | int }} {{ -1.9 | int }} {{ true | int }} {{ none | int }} {{ '1e3' | int }} {{ '1.5' | float }} {{ 'x' | float }} {{ 2 | float }} {{ '+5' | int }} {{ '-5' | int }} {{ '+-5' | int }} {{ '' | int }} {{ [1] | int }} {{ 'x' | float(2.5) }}
{{ {'b': 1, 'a': [1, 2.0, none, true, 'é"\n<>&\'\\/\u0001\x7f\u2028']} | tojson }} {{ [] | tojson }} {{ {} | tojson }} {{ 'x' | tojson }} {{ (1,2) | tojson }} {{ 1e20 | tojson }} {{ none | tojson }}
{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=4) }} {{ [1,[2]] | tojson(2) }} {{ [1] | tojson(indent=none) }} {{ [] | tojson(indent=2) }} {{ [1,2] | tojson(indent=0) }} {{ 'é😀\x7f~' | tojson(true) }} {{ ['é'] | tojson(ensure_ascii=true, indent=1) }}
{{ x | tojson }}
{{ namespace() | tojson }}
{{ ['a','b'] | map('upper') | list }} {{ [{'a':{'b':1}}] | map(attribute='a.b') | list }} {{ [[1,2],[3]] | map('first') | list }} {{ [{'a':1},{}] | map(attribute='a', default=0) | list }} {{ ['a'] | map('replace', 'a', 'b') | list }} {{ [[5]] | map(attribute=0) | list }}
{{ [0,1,2,''] | select | list }} {{ [1,2,3] | select('odd') | list }} {{ [1,2,3] | reject('gt', 1) | list }} {{ [{'r':'a'},{'r':'b'},{}] | selectattr('r') | list }} {{ [{'r':'a'},{'r':'b'}] | rejectattr('r', 'equalto', 'a') | list }} {{ [{'r':'a'},{}] | selectattr('r', 'defined') | list | length }} {{ [{'r':1},{'r':2}] | selectattr('r', '==', 2) | map(attribute='r') | first }}
{{ ' a '.strip() }}| {{ 'xax'.strip('x') }} {{ 'xyaxy'.lstrip('xy') }} {{ 'xya\n'.rstrip() }}| {{ 'éaé'.strip('é') }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('') }} {{ ' a'.strip(none) }}
{{ 'a b  c'.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a  b c '.split(none, 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'a<>b'.split('<>')[-1] }} {{ 'a\nb\r\nc\n\nd'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ 'aXXb'.rsplit('X') }} {{ 'aaa'.rsplit('aa') }} {{ 'a b'.split(maxsplit=0) }}
{{ 'a'.split('') }}
{{ 'ABC'.lower() }} {{ 'abc'.upper() }} {{ "they're bill's x1y éa".title() }} {{ 'aBC'.capitalize() }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'éab'.find('b') }} {{ 'abc'.find('z') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} {{ '-'.join(['a','b']) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ ''.join([]) }}|
{{ '-'.join([1]) }}
{{ {'a':1}.get('a') }} {{ {'a':1}.get('b') }} {{ {'a':1}.get('b', 2) }} {{ {'a':1}.items() | list }} {{ {'a':1}.keys() | list }} {{ {'a':1}.values() | list }} {% for k, v in {'a':1,'b':2}.items() %}{{ k }}={{ v }};{% endfor %}
{{ x.strip() }}
{{ none.strip() }}
{{ 5 .upper() }}
{{ [1].get(0) }}
{% for i in range(3) %}{{ i }}{% endfor %} {{ range(2, 10, 3) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3) | last }}
{{ range(1000000) }}
{{ range(1, 2, 0) }}
{{ range('a') }}
{% for i in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for i in [1,2,3,4] if i is odd %}{{ i }}{{ loop.last }}{{ loop.length }}{% else %}none{% endfor %} {% for i in [] %}x{% else %}empty{% endfor %} {% for i in x %}x{% else %}undef{% endfor %} {% for i in [2] if i == 1 %}x{% else %}filtered{% endfor %}
{% for c in 'aé世' %}{{ c }}.{% endfor %} {% for k in {'a':1} %}{{ k }}{% endfor %} {% for a, b in [(1,2),[3,4]] %}{{ a }}{{ b }}{% endfor %} {% for (a, b) in ['xy'] %}{{ a }}{{ b }}{% endfor %} {% for i in [[1,2],[3]] %}{% for j in i %}{{ j }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}
{% for i in 5 %}{% endfor %}
{% for i in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1,2,3)] %}{% endfor %}
{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% set a = 1 %}{% for i in [1,2] %}{{ a }}{% set a = 5 %}{{ a }}{% endfor %}{{ a }}
{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }} {% set b, c = 1, 2 %}{{ b }}{{ c }} {% set d = 1, 2 %}{{ d }} {% set (e, f) = [3, 4] %}{{ e }}{{ f }}
{% set a %}x{{ 1 }}{% set inner = 1 %}{% endset %}{{ a }}{{ inner is defined }} {% set ns = namespace(a=1, b='x') %}{{ ns.a }}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.c }}| {% for i in [1,2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }} {{ ns['b'] }} {% set ns.n = none %}{{ ns.n }}
{% set a = 1 %}{% set a.b = 2 %}
{% set n = namespace({'q': 1}, r=2) %}{{ n.q }}{{ n.r }} {{ dict(a=1, b=[2]) }} {{ dict() }}
{% set l = [1] %}{{ l + [2] }} {{ l }} {{ [1] + [x] }} {{ (1,) + (2,) }}
{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1, a=0) }}{{ m() }}{{ m(1) | length }}
{% macro m() %}{{ y }}{% endmacro %}{% set y = 3 %}{{ m() }}{% for y in [4] %}{{ m() }}{% endfor %}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(c=2) }}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}|
{% if x %}a{% elif 0 %}b{% elif 'c' %}c{% else %}d{% endif %} {% if [] %}a{% else %}b{% endif %} {% if {} or () or '' or 0.0 or none %}a{% else %}b{% endif %} {% if [0] and 'a' and {'a':1} and namespace() %}a{% endif %}
{{ raise_exception('stop: ' ~ 5) }}
{% for i in [1] %}{% if true %}{{ raise_exception('deep') }}{% endif %}{% endfor %}
{{ (raise_exception('in a filter') | upper) ~ 'x' }}
{{- ' a ' -}}  b  {{- ' c ' }} {#- d -#}  e {%- if true -%}  f  {%- endif %}  g
a {# {{ comment }} {% if %} #} b {#- -#} c
{% raw %}{{ x }}{% if %}{% endraw %}| {%- raw -%}  {{ y }}  {%- endraw -%}  z
{{ '}}' }} {{ '%}' }} {{ {'a': {'b': 1}} }} {{ {'a':{'b':1}}['a']['b'] }} { { }} %} #} {{ '{{' }}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now("%d %B %Y %H:%M:%S %A %a %b %y %j %%") }} {{ strftime_now is defined }}
{{ messages | length }} {{ messages[0].role }} {{ messages[-1]['content'] }} {{ messages[0] }} {{ messages[1:] | map(attribute='role') | list }} {{ tools }} {{ tools is defined }} {{ documents is none }} {{ add_generation_prompt }} {{ bos_token }} {{ eos_token ~ 'x' }} {{ messages[9] is defined }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }} {{ (messages | last).content }} {{ messages | rejectattr('role', 'in', ['user']) | list | length }} {{ messages[0]['content'][:3] }}
{{ 1 if 2 else 3 if 0 else 4 }} {{ [1 if x else 2, 3] }} {{ (1 + 2) * 3 }} {{ 1 + 2 ~ 3 }} {{ 1 ~ 2 * 3 }} {{ -2 ** 2 }} {{ 2 * 3 % 4 }} {{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ -1 | string ~ 'x' }} {{ not 1 == 2 }} {{ not (1 in [1]) }} {{ 1 + 1 == 2 and 2 > 1 or false }}
{{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }} {{ {} | dictsort }} {% for k, v in {'z': [1], 'y': none} | dictsort %}{{ k }}{{ v }}{% endfor %}
{{ [1] | dictsort }}
{{ {'a': 1} | dictsort(by='x') }}
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'a'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [{'n': 2, 'm': 'x'}, {'n': 1, 'm': 'y'}, {'n': 1, 'm': 'w'}] | sort(attribute='n') | map(attribute='m') | join }} {{ [{'n': 1, 'm': 'y'}, {'n': 1, 'm': 'w'}] | sort(attribute='n,m') | map(attribute='m') | join }} {{ 'cab' | sort | join }}
{{ [1, 'a'] | sort }}
{{ [1, 2, 1, 'a', 'A', 3.0, 3] | unique | list }} {{ ['a', 'A'] | unique(true) | list }} {{ [{'t': 'x'}, {'t': 'y'}, {'t': 'x'}] | map(attribute='t') | unique | join(',') }} {{ [{'t': 1}, {'t': 1}] | unique(attribute='t') | list }}
{{ [3, 1, 2] | min }} {{ [3, 1, 2] | max }} {{ ['b', 'A'] | min }} {{ [] | min is defined }} {{ [{'n': 2}, {'n': 5}] | max(attribute='n') }} {{ [1, 1.0] | min }} {{ [1.0, 1] | max }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2, true) }}| {{ 'a\n\nb' | indent(1, blank=true) }}| {{ 'a\nb' | indent('> ') }}| {{ 'a\n' | indent(2) }}| {{ '' | indent(2, first=true) }}| {{ '\n' | indent(2) }}| {{ 'a\nb\n' | indent(3, false, true) }}| {{ 'a\r\nb' | indent }}|
{{ '<a>' | safe }} {{ '<a>' | safe ~ '<b>' }} {{ ('<a>' | safe) + '<b> & "c" \'d\'' }} {{ '<b>' + ('<a>' | safe) }} {{ ('<a>' | safe) + ('<b>' | safe) }} {{ ('<a>' | safe) + '<b>' + '<c>' }} {{ 5 | safe }} {{ ('<a>' | safe) ~ '>' + '<' }}
{{ '{}-{}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('x', none) }} {{ '{a}{{}}'.format(a=true) }} {{ 'plain'.format() }} {{ '<x{}>'.format('') }}
{{ '{}'.format() }}
{{ '{'.format(1) }}
{{ '}'.format(1) }}
{{ {0: 'a', 512: 'b', -1: 'c'} }} {{ {0: 'a'}[0] }} {{ {0: 'a'}['0'] is defined }} {{ {1: 2} | tojson }} {{ 1 in {1: 2} }} {{ '1' in {1: 2} }} {{ {2: 'x', 10: 'y'} | dictsort }} {{ {1: 2}.items() | list }} {{ {1: 2}.get(1) }} {{ {1: 2}.get('1') }} {% for k in {3: 4} %}{{ k + 1 }}{% endfor %} {{ {1: 2} == {1: 2} }} {{ {1: 2} == {'1': 2} }} {{ {1: 'a', 1: 'b'} }} {{ {1: 2}.keys() | list }}
{{ none | selectattr('a') | list }} {{ none | map('upper') | list }} {{ none | reject | list }} {{ false | rejectattr('a', 'equalto', 1) | list }} {{ 0 | select | list }}
{% if false %}{{ x | no_such_filter }}{{ x is no_such_test }}{{ x.no_such_method() }}{{ no_such_function() }}{% endif %}a
{% if true %}{{ 1 | no_such_filter }}{% endif %}
{% filter trim %}  a {{ 1 }}  {% endfilter %}| {% filter upper | replace('B', '-') %}a{% set c = 1 %}b{% endfilter %}{{ c is defined }} {% for i in [1, 2] %}{% filter indent(2, true) %}{{ i }}{% endfilter %}{% endfor %}
{% macro m(l) %}{{ l.append(1) }}{% endmacro %}b
{% macro m(l) %}{{ l.append(1) }}{% endmacro %}{{ m([]) }}
{{ [1,2,] }} {{ {'a':1,} }} {{ (1,) }} {{ ((1)) }} {{ "a" if "b" in "abc" and not "z" in "abc" else "c" }} {{ [[]] }} {{ '%s' }} {{ loop is defined }} {{ range is defined }}
"""


class Generation(Extension):
    """{% generation %}, as transformers has it unless the caller asks which tokens the model wrote."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


# Templates that call tools, as the well-known families write them, and what they are given.
TOOL_TEMPLATES = {
    "json_tools": """{%- if tools %}{{- '<tools>\\n' }}{%- for tool in tools %}{{- tool | tojson ~ '\\n' }}{%- endfor %}{{- '</tools>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{{- '<a>' ~ (m.content or '') }}
{%- for call in m.tool_calls %}{%- set call = call.function if call.function is defined else call %}
{{- '<call>{"name": "' ~ call.name ~ '", "arguments": ' }}
{%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson(indent=2) }}{%- endif %}
{{- '}</call>' }}{%- endfor %}
{%- elif m.role == 'tool' %}{{- '<result of="' ~ m.tool_call_id ~ '">' ~ (m.content if m.content is string else m.content | tojson) ~ '</result>' }}
{%- elif m.content is string %}{{- '<' ~ m.role[0] ~ '>' ~ m.content }}
{%- else %}{{- '<' ~ m.role[0] ~ '>' }}{%- for part in m.content %}{%- if part.type == 'text' %}{{- part.text }}{%- else %}{{- '[' ~ part.type ~ ']' }}{%- endif %}{%- endfor %}
{%- endif %}
{%- if m.reasoning_content %}{{- '<think>' ~ m.reasoning_content.strip() ~ '</think>' }}{%- endif %}
{%- endfor %}""",
    "xml_tools": """{%- macro arguments(map) %}{%- for name, value in map | dictsort %}
<{{ name }}>{{ (value | tojson if value is mapping or value is sequence and value is not string else value | string) | safe }}</{{ name }}>
{%- endfor %}{%- endmacro %}
{%- for tool in tools or [] %}
# {{ tool.function.name }}: {{ tool.function.description | default('?') }}
{%- for name, schema in tool.function.parameters.properties.items() %}
- {{ name }} ({{ schema.type }}{{ ', required' if name in (tool.function.parameters.required or []) }})
{%- endfor %}
{%- endfor %}
{%- for m in messages %}
{{ m.role }}: {{ m.content }}
{%- for call in m.tool_calls or [] %}{{ arguments(call.function.arguments) | indent(2) }}{%- endfor %}
{%- endfor %}""",
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Now & \"later\" <soon>", "parameters": {
        "type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "enum": ["Zürich", "Bern"]}, "days": {"type": "integer", "default": None},
            "exact": {"type": "boolean"}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
TOOL_CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"},
     {"role": "assistant", "content": None, "reasoning_content": " hm\n", "tool_calls": [
         {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {
             "place": "Zürich", "days": 2, "exact": True, "box": {"n": 1.5, "list": [1, None]}}}},
         {"id": "2", "function": {"name": "now", "arguments": {}}}]},
     {"role": "tool", "tool_call_id": "1", "content": {"degrees": 21.5, "sky": ["clear"]}},
     {"role": "tool", "tool_call_id": "2", "content": "12:00"}],
    [{"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "image"}, {"type": "text", "text": "two"}]}],
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    return result


def strftime_now(layout):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(layout)


def outcome(template, variables):
    try:
        return {"text": template.render(**variables)}
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return {"raised": str(e)}
        return {"fails": str(e)}
    except Exception as e:  # noqa: BLE001 Python's own errors, such as adding a number to a string
        return {"fails": str(e)}


def main():
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent)
    jinja = environment()
    messages = [[{"role": r, "content": c} for r, c in conversation] for conversation in CONVERSATIONS]
    base = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"}

    sources = {"smollm2": read_metadata(sys.argv[1])["tokenizer.chat_template"], **TEMPLATES}
    templates = []
    for name, source in sources.items():
        cases = []
        for clock in (False, True) if "strftime_now" in source else (False,):
            for i, conversation in enumerate(messages):
                for prompt in (True, False):
                    variables = {**base, "messages": conversation, "add_generation_prompt": prompt}
                    if clock:
                        variables["strftime_now"] = strftime_now
                    result = outcome(jinja.from_string(source), variables)
                    cases.append({"conversation": i, "prompt": prompt, "clock": clock, **result})
        templates.append({"name": name, "source": source, "cases": cases})

    snippets = []
    joined = ""
    for line in SNIPPETS.strip("\n").split("\n"):
        joined += line
        if joined.endswith("\\"):  # a string that goes on in the next line
            joined += "\n"
            continue
        variables = {**base, "messages": messages[4], "add_generation_prompt": True, "strftime_now": strftime_now}
        snippets.append({"source": joined, **outcome(jinja.from_string(joined), variables)})
        joined = ""

    tool_cases = []
    for source in TOOL_TEMPLATES.values():
        for i, conversation in enumerate(TOOL_CONVERSATIONS):
            for with_tools in (False, True):
                variables = {**base, "messages": conversation, "tools": TOOLS if with_tools else None, "add_generation_prompt": True}
                tool_cases.append({"source": source, "conversation": i, "tools": with_tools, **outcome(jinja.from_string(source), variables)})

    data = {"tools": TOOLS, "tool_conversations": TOOL_CONVERSATIONS, "tool_cases": tool_cases, "now": NOW, "conversations": messages, "snippet_conversation": 4, "templates": templates, "snippets": snippets}
    path = folder / "chat_templates.json"
    path.write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    counts = sum(len(t["cases"]) for t in templates)
    print(f"{path.name}: {len(templates)} templates, {counts} renderings, {len(snippets)} snippets, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
