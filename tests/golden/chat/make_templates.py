#!/usr/bin/env python3
"""Stores what transformers prints for chat templates: templates.json, a list of templates with their variables, the text, and
the characters that {% generation %} blocks printed. "error" is true where transformers refuses.

usage: make_templates.py [--check | --folder DIR]
       --folder prints the same for all files *.jinja of a folder
"""
import datetime
import json
import pathlib
import sys

import transformers.utils.chat_template_utils as chat

PATH = pathlib.Path(__file__).with_name("templates.json")
NOW = datetime.datetime(2026, 3, 5, 12, 0, 0, tzinfo=datetime.timezone.utc)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


USER = {"role": "user", "content": " Caf\u00e9 <b>&\n "}
ANSWER = {"role": "assistant", "content": "Yes.\n\nNo 'or' \"and\" \u4e16\u754c \U0001f600"}
SYSTEM = {"role": "system", "content": "Be short."}
CONVERSATIONS = {"one": [USER, ANSWER], "system": [SYSTEM, USER, ANSWER, USER, ANSWER], "open": [SYSTEM, USER]}

# Whole templates, in the manner of those of trained models.
WHOLE = {
    "marked turns": """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}{{ '<start>system\nHelp.<end>\n' }}{% endif %}
    {{- '<start>' + message['role'] + '\n' + message['content'] + '<end>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start>assistant\n' }}
{%- endif %}
""",
    "alternating": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}{% set rest = messages %}{% set system = false %}{% endif %}
{{ bos_token }}{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{% if loop.index0 == 0 and system != false %}{% set content = '<<' + system + '>>\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ '[ASK] ' + content.strip() + ' [/ASK]' }}
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "generation": """{{ bos_token }}{% for m in messages %}
    {%- if m.role == 'assistant' -%}
        <a>{% generation %}{{ m.content }}</a>{% endgeneration %}
    {%- else -%}
        <u>{{ m.content | trim }}</u>
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<a>{% endif %}""",
    "macros and namespaces": """{%- macro turn(role, text='', end="<e>") -%}
{{ '<' ~ role ~ '>' ~ text ~ end }}
{%- endmacro -%}
{%- set ns = namespace(turns=0, last='') -%}
{%- for m in messages -%}
  {%- if m.role == 'system' %}{% continue %}{% endif -%}
  {%- set ns.turns = ns.turns + 1 -%}
  {%- set ns.last = m.role -%}
  {{- turn(m.role, text=m.content | trim) -}}
  {%- if ns.turns > 3 %}{% break %}{% endif -%}
{%- endfor -%}
{{- ns.turns }}/{{ ns.last | upper }} {{ strftime_now('%d %b %Y') }}
{%- if add_generation_prompt %}{{ turn('assistant', end='') }}{% endif -%}""",
    "thinking": """{%- for m in messages -%}
{%- if m.role == 'assistant' and '</think>' in m.content -%}
{{- m.content.split('</think>')[-1].lstrip('\\n') -}}
{%- else -%}{{- m.content.split('.')[0].rstrip() -}}|{%- endif -%}
{%- endfor -%}""",
}

# One construct each.
SMALL = """
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}
{{ 1.5 + 1 }} {{ 1e20 }} {{ 1e15 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e-7 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 < 2 < 3 }} {{ (1 < 2) == true }} {{ none == false }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ x }} {{ 'a' 'b' }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }} {{ 'x%sy%d%%' % ('a', 3) }}
{{ not a }} {{ not 1 == 2 }} {{ 1 and 0 or 'c' }} {{ '' or [] or {} }} {{ x is not defined }} {{ x is defined and x.y }}
{{ 'yes' if 1 else 'no' }} {{ 'yes' if 0 }} {{ 'a' if 0 else 'b' if 0 else 'c' }}
{{ [1, 'a', none, true, 1.5, [], {}, {'k': 'v'}, (1, 2), (1,)] }} {{ 'it\\'s' | list }} {{ ["it's", 'say "x"', 'a\\nb\\\\'] }}
{{ {'a': 1, 'b': {'c': [1, 2]}} | tojson }} {{ 'q"\\\\\\n\\u00e9\\u4e16<>&' | tojson }} {{ [1, 2.0, none, true] | tojson(indent=2) }}
{{ {'b': 1, 'a': {}} | tojson(sort_keys=true, separators=(',', ':')) }} {{ 'caf\\u00e9\\U0001f600' | tojson(ensure_ascii=true) }}
{{ x | tojson }}
{{ 'abcdef'[1:3] }} {{ 'abcdef'[-2:] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[::2] }} {{ [1, 2, 3][1:] }} {{ [1, 2, 3][:-1] }} {{ [1, 2, 3][5:] }} {{ 'abc'[-9:9] }}
{{ 'caf\\u00e9'[3] }} {{ 'caf\\u00e9' | length }} {{ 'abc'[-1] }} {{ [1, 2][-1] }} {{ [1, 2][7] }}| {{ {'a': 1}['b'] }}| {{ {'a': 1}.a }} {{ (1, 2).0 }}
{{ x.y }}
{{ x['y'] }}
{{ x() }}
{{ 'a' + 1 }}
{{ 1 < 'a' }}
{{ 1 // 0 }}
{{ none | length }}
{{ 5 | list }}
{% for i in 5 %}{% endfor %}
{% for i in x %}a{% else %}empty{% endfor %} {% for i in none %}{% endfor %}
{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for i in range(10) if i is odd %}{{ i }}{{ ',' if not loop.last }}{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {{ range(3) | list }}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for i in [1, 2] %}{% for j in [3] %}{{ loop.index }}{{ loop.length }}{% endfor %}{{ loop.index }}{% endfor %} {% for i in 'ab' %}{{ loop.cycle('x', 'y') }}{% endfor %}
{% for n in [[1, [2, [3]]]] recursive %}{% for e in n %}{% if e is number %}{{ e }}@{{ loop.depth }}{% endif %}{% endfor %}{% endfor %}
{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}
{% set a = 1 %}{% for i in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }} {% if true %}{% set a = 3 %}{% endif %}{{ a }} {% set b, c = 1, 2 %}{{ b }}{{ c }}
{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }} {{ ns.b is defined }} {{ ns['a'] }}
{% set a.b = 1 %}
{% set t %}a{{ 1 }}b{% endset %}[{{ t }}] {% set t | upper | trim %} xy {% endset %}[{{ t }}] {% filter upper %}abc{{ 'd' }}{% endfilter %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c='y') }} {{ m(b=3) }} {{ m('<') | upper }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}
{% macro box() %}[{{ caller('a') }}]{% endmacro %}{% call(x) box() %}{{ x }}!{% endcall %} {% macro two() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call two() %}-{% endcall %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{{ '  a b '.strip() }}|{{ '  a b '.lstrip() }}|{{ '  a b '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}
{{ 'Hello'.startswith('He') }}{{ 'Hello'.endswith(('lo', 'x')) }}{{ 'abab'.replace('a', 'x') }}{{ 'abab'.replace('a', 'x', 1) }}{{ 'ab'.replace('', '-') }}{{ "they're bill's".title() }}{{ 'aBC'.capitalize() }}
{{ 'abc'.upper() }}{{ 'ABC'.lower() }}{{ 'stra\\u00dfe'.upper() }}{{ 'a-b'.find('b') }}{{ 'a'.find('z') }}{{ 'aXbX'.count('X') }}{{ ', '.join(['a', 'b']) }}{{ '12'.isdigit() }}{{ 'a\\nb'.splitlines() }}
{{ '{0} {0}'.format(1) }}
{{ '{}-{}'.format(1, 'b') }} {{ '{1}{0}{k}'.format(1, 2, k=3) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'a b'.rfind(' ') }}
{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}{{ {'a': 1}.items() | list }}{{ 'a' in {'a': 1} }}{{ [1, 2, 1].count(1) }}
{{ [1].append(2) }}
{{ {}.update({}) }}
{{ 'Hello World' | upper }}{{ 'HI' | lower }}{{ 'hello wORLD-x' | title }}{{ 'hELLO' | capitalize }}{{ '  x ' | trim }}{{ 'xxaxx' | trim('x') }}{{ 1 | string }}{{ 'a' | safe }}
{{ x | default('d') }}{{ '' | default('d') }}|{{ '' | default('d', true) }}{{ none | d('e', boolean=true) }}{{ x | default }}{{ [1, 2] | length }}{{ {'a': 1} | count }}{{ x | length }}
{{ [1, 2, 3] | join(', ') }} {{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }} {{ 'abc' | join('.') }} {{ [] | join }}|{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }}
{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }}|{{ 'abc' | first }}{{ 'abc' | last }}{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}{{ [1, 1, 2, 'a', 'A'] | unique | list }}{{ [3, 1] | min }}{{ [3, 1] | max }}{{ [1, 2.5] | sum }}
{{ [{'a': 1, 'b': 1}, {'a': 2}, {}] | selectattr('b') | list }}{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list }}{{ [{'a': 1}, {'a': 2}] | rejectattr('a', '==', 2) | map(attribute='a') | list }}
{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}{{ ['a', 'b'] | map('upper') | list }}{{ [{}, {'a': 1}] | map(attribute='a', default=0) | list }}{{ [0, 1, none, 'a'] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}{{ ['a', 1] | select('string') | list }}{{ none | selectattr('a') | list }}
{{ {'b': 2, 'A': 1} | dictsort }}{{ {'a': 2, 'b': 1} | dictsort(by='value') }}{{ {'a': 1} | items | list }}{{ x | items | list }}{{ {'a': 1} | list }}{{ 'ab' | list }}
{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('> ', blank=true) }}|{{ 'ab' | replace('a', 'x') }}{{ 1 | replace(1, 2) }}
{{ '12' | int }}{{ '1.9' | int }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ 3.7 | int }}{{ 'ff' | int(0, 16) }}{{ '1.5' | float }}{{ 'x' | float }}{{ -3 | abs }}{{ 2.567 | round(1) }}{{ 2.5 | round }}{{ '%s-%d' | format('a', 3) }}{{ '<a>' | e }}
{{ 1 is number }}{{ 1.5 is number }}{{ true is number }}{{ 'a' is number }}{{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }}{{ true is boolean }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is mapping }}
{{ [] is sequence }}{{ 'a' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}{{ x is sequence }}{{ [] is iterable }}{{ 1 is iterable }}{{ x is iterable }}{{ none is none }}{{ x is none }}{{ x is undefined }}{{ true is true }}{{ 1 is true }}{{ false is false }}
{{ 2 is even }}{{ 3 is odd }}{{ 6 is divisibleby 3 }}{{ 1 is eq 1 }}{{ 1 is equalto(2) }}{{ 1 is ne 2 }}{{ 1 is in [1, 2] }}{{ 'a' is in 'abc' }}{{ 3 is gt 2 }}{{ 'ab' is lower }}{{ 'AB' is upper }}{{ range is callable }}{{ 1 is not none }}{{ 1 is sameas 1 }}
{{ 1 in [1] }}{{ 1 not in [1] }}{{ 'b' in 'abc' }}{{ 'k' in {'k': 1} }}{{ 1 in x }}{{ not 1 in [2] }}
{{ 1 in 'abc' }}
{{ dict(a=1, b=2) }}{{ dict({'a': 1}, b=3) }}{{ namespace({'a': 5}).a }}{% set j = joiner(';') %}{{ j() }}{{ j() }}{{ j() }}
{{ [1, 2, 3,] }}{{ {'a': 1,} }}{{ () }}{{ (1) }}{{ 1, 2 }}{{ [[1, 2], [3]][0][1] }}{{ {'a': {'b': [10, 20]}}.a.b[1] }}{{ "a\\tb" }}{{ 'a\\x41\\u0042' }}{{ '\\q' }}
{{ messages is not none and messages | length > 1 }}{{ messages | map(attribute='role') | join(',') }}{{ messages[0].content[1:5] }}{{ messages[-1]['role'] }}{{ (messages | last).role }}{{ messages[1:] | length }}
{% raw %}{{ a }}{% b %}{% endraw %}{# comment #}x{#- c -#}  y
{{ raise_exception('stop ' ~ 1) }}
{{ 'a' | nofilter }}
{{ 'a' is notest }}
{% unknown %}
{% if %}
{{ 1 +
{{ 'a
{% for x in [1] %}
{{ a b }}
{{ [1, 2 }}
{% break %}
{{ f(**{'a': 1}) }}
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}
""".strip("\n").split("\n")

# White space control, one template each.
SPACE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n",
    "a\n  {%+ if true %}\nb{% endif %}\n", "a {% if true +%}\nb{% endif %}\n", "  {{ 1 }}\n  {{- 2 -}}\n  3\n\n",
    "x\n  {# c #}\ny {# d #}\n{#- e -#}\n z", "\n\n{% set a = 1 %}\n\n{{ a }}\n\n", "{% for i in [1, 2] %}\n  {{ i }}\n{% endfor %}\n\n",
    "a\r\n{% if 1 %}\r\nb\r\n{% endif %}\r\n", "  {% if 1 %}x{% endif %}  {% if 1 %}y{% endif %}\n  z", "\t{%- raw -%} {{ x }} {%- endraw -%}\t!",
    "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}}['a']['b'] }}", "{%if 1%}a{%endif%}{{1}}", "a{{- ' b ' -}}c", "{#a#}\nb", "{{ 1 }}\nb\n",
]


def cases_of(folder):
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        for messages in CONVERSATIONS.values():
            for prompt in (False, True):
                yield {"name": path.name, "template": path.read_bytes().decode(), "messages": messages,
                       "add_generation_prompt": prompt}


def cases():
    for name, template in WHOLE.items():
        for messages in CONVERSATIONS.values():
            for prompt in (False, True):
                yield {"name": name, "template": template, "messages": messages, "add_generation_prompt": prompt}
    for kind, group in (("small", SMALL), ("space", SPACE)):
        for number, template in enumerate(group):
            yield {"name": f"{kind} {number}", "template": template, "messages": CONVERSATIONS["system"],
                   "add_generation_prompt": False}


def answer(case):
    try:
        texts, spans = chat.render_jinja_template(
            [case["messages"]], chat_template=case["template"], add_generation_prompt=case["add_generation_prompt"],
            return_assistant_tokens_mask=True, bos_token="<s>", eos_token="</s>")
    except Exception:  # of Jinja, or of Python in a template
        return {**case, "error": True}
    return {**case, "text": texts[0], "generated": spans[0]}


def main():
    chat.datetime = Clock
    if "--folder" in sys.argv:
        print(json.dumps([answer(case) for case in cases_of(sys.argv[-1])]))
        return 0
    rows = [json.dumps(answer(case)) for case in cases()]
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    if "--check" in sys.argv:
        return 0 if PATH.read_text() == text else "templates.json differs"
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
