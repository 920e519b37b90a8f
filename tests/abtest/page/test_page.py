"""The page: valid, whole in itself, of bounded size, readable in both themes, and with everything in it."""

import dataclasses
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from comparisons import PLAN, analysed, leave_both, leave_run

from hvdlite.abtest import page, result
from hvdlite.abtest.curves import MOST_POINTS, Curve

pytest.importorskip("scipy")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Elements with their attributes and texts; tags that do not match are an error."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"an attribute of {tag} is given twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    leave_both(folder)
    return analysed(folder)


@pytest.fixture(scope="module")
def html(answer):
    return page.render(answer)


def test_it_is_valid_and_its_references_stay_within(html):
    assert html.lower().count("<!doctype html>") == 1
    parsed = Page(html)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "ids are unique over all figures"
    for tag, attributes in parsed.elements:
        for name in ("href", "xlink:href"):
            if name in attributes:
                assert attributes[name].startswith("#"), f"{tag} refers to {attributes[name]}"
                assert attributes[name][1:] in ids
        assert not {"src", "srcset", "data", "poster", "action"} & attributes.keys(), tag
        for name in attributes.get("aria-labelledby", "").split():
            assert name in ids
        for name in re.findall(r"url\(#([^)]*)\)", " ".join(filter(None, attributes.values()))):
            assert name in ids
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert not re.search(r"https?://(?!www\.w3\.org/)", html), "names of formats are no addresses that are looked up"
    assert not {"script", "iframe", "object", "embed", "link"} & {tag for tag, _ in parsed.elements}


def test_it_can_be_used_without_seeing_the_figures(html):
    parsed = Page(html)
    plots = [attributes for attributes in parsed.all("svg") if "plot" in attributes.get("class", "")]
    assert len(plots) == 8
    assert all(attributes["role"] == "img" and attributes["aria-labelledby"] for attributes in plots)
    assert len(parsed.all("title")) == 1 + len(plots)
    assert len(parsed.all("caption")) == len(parsed.all("table")) == 3
    assert all(attributes["scope"] in ("col", "row") for attributes in parsed.all("th"))
    assert parsed.all("html") == [{"lang": "en"}]
    assert len(parsed.all("h1")) == 1


def test_the_answer_comes_first_in_words(html):
    said = Page(html).text
    expected = ("Does compression pay here", "Use int8: a step takes", "HVDLITE_COMPRESSION=int8", "faster and not worse", "How sure")
    places = [said.index(words) for words in expected]
    assert places == sorted(places)
    assert re.search(r"A step takes [34]\d\.\d % less time than with none \(ratio 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]\)\.", said)
    assert "Rank 0 sends 250 B a step, 4 times fewer than none." in said
    assert re.search(
        r"The baseline, none: loss 0\.1\d* ± 0\.\d+, (9|10)\.\d\d ms a step, 1 kB a step from rank 0; 6 of 6 runs\. Every run ended by itself\.", said
    )


def test_every_arm_and_every_raw_number_is_in_it(answer, html):
    parsed = Page(html)
    said = parsed.text
    for row in answer.runs:
        for value in vars(row).values():
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            assert value is None or isinstance(value, bool) or shown in said, row
    texts = {text.strip() for text in parsed.texts}
    assert {"none", "int8", *answer.machine.values(), *answer.job.values()} <= texts
    assert "hvdlite ab \\ --arms none,int8 \\ --no-baselines \\ --seeds 6 \\ -np 2 \\ --metric loss \\ -- python train.py" in said
    assert all(line in said for line in answer.not_controlled)


def test_it_is_made_from_what_ab_json_holds(answer, html, tmp_path):
    result.write(answer, tmp_path)
    assert page.render(result.load(tmp_path / "ab.json")) == html
    leave_both(tmp_path)
    for path in tmp_path.glob("runs/seed[23].int8/report.jsonl"):
        path.write_text(path.read_text().replace('{"loss": ', '{"loss": NaN, "was": '))
    diverged = analysed(tmp_path)
    assert diverged.arms[1].judged.words == "faster but worse (2 runs diverged)"
    result.write(diverged, tmp_path)
    assert page.render(result.load(tmp_path / "ab.json")) == page.render(diverged), "numbers that are not finite are lost in JSON"
    assert "2 runs that diverged are left out" in page.render(diverged)


def test_hosts_and_links_are_named(answer):
    said = Page(page.render(dataclasses.replace(answer, plan=dataclasses.replace(PLAN, link="1gbit", hosts=2)))).text
    assert "2 ranks on 2 hosts, links of 1gbit" in said
    assert "--link 1gbit \\ --hosts 2" in said


def test_the_command_on_the_page_gives_the_same_plan():
    from click.testing import CliRunner

    from hvdlite.cli import ab

    plan = dataclasses.replace(
        PLAN, metric="accuracy", higher_is_better=True, margin=0.1 + 0.2, stop_at="accuracy>=90.5", metric_regex="a (.*)", command=("true", "{seed}")
    )
    for each in (plan, dataclasses.replace(plan, stop_at="steps=20", margin=None, higher_is_better=False), dataclasses.replace(plan, stop_at="minutes=0.5")):
        given = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ab, "_execute", lambda plan, *_, given=given: given.append(plan) or 0)
            words = [word for option in each.options() for word in option]
            CliRunner().invoke(ab.command, [*words, "--", *each.command], catch_exceptions=False, standalone_mode=False)
        assert given == [each]


def test_what_users_name_is_text(tmp_path):
    nasty = "<img src=x onerror=alert(1)> \"$a_b$ & 'c'"
    plan = dataclasses.replace(PLAN, command=("python", nasty), metric=nasty, seeds=2)
    for seed in range(2):
        for arm in plan.arms:
            leave_run(tmp_path, arm, seed, job={nasty: nasty})
    leave_run(tmp_path, "none", 2, code=1, problem=f"exit code 1: {nasty}")
    for path in tmp_path.rglob("report.jsonl"):
        path.write_text(path.read_text().replace('"loss"', '"' + nasty.replace('"', '\\"') + '"'))
    plan = dataclasses.replace(plan, seeds=3)
    answer = dataclasses.replace(analysed(tmp_path, plan), warnings=[nasty])
    assert answer.arms[1].metric_mean is not None
    html = page.render(answer)
    parsed = Page(html)
    assert not parsed.all("img")
    assert parsed.text.count(nasty) >= 10
    drawn = [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", html)]
    assert sum(nasty in text for text in drawn) >= 2, "nor is it a formula in the figures"


def test_what_is_missing_is_counted_at_the_top_and_told_below(tmp_path):
    leave_both(tmp_path, 3)
    leave_run(tmp_path, "none", 3, code=1, problem="exit code 1: rank 1 failed")
    said = Page(page.render(analysed(tmp_path))).text
    assert said.index("6 of 12 runs are missing") < said.index("How sure is it?") < said.index("What is missing")
    assert "none, seed 3: exit code 1: rank 1 failed" in said
    assert "int8, seeds 3, 4, 5: not run" in said
    assert "underpowered: 3 pairs of runs, 6 are needed" in said


def test_a_comparison_without_a_single_run_has_a_page(tmp_path):
    said = Page(page.render(analysed(tmp_path))).text
    assert "12 of 12 runs are missing" in said
    assert "Nothing is known about its step time." in said
    assert "--resume" in said


def test_warnings_and_fidelity_have_a_place(answer):
    steps = [1.0, 2.0, 3.0]
    curves = [Curve(arm, seed, "vNMSE", steps, steps, [0.5, None, 0.1]) for arm in PLAN.arms for seed in (0, 1)]
    said = Page(page.render(dataclasses.replace(answer, warnings=["int8: its residual grows"], fidelity=curves))).text
    assert said.index("int8: its residual grows") < said.index("How sure")
    assert "vNMSE over steps" in said
    assert "vNMSE over steps" not in Page(page.render(answer)).text


def test_it_stays_under_a_megabyte_with_nine_arms_and_twelve_seeds(answer):
    arms = tuple(f"topk:density=0.0{i},feedback=false" for i in range(1, 10))
    steps = [float(i) + 0.123456 for i in range(MOST_POINTS)]
    values = [1 / (1.0 + i) for i in range(MOST_POINTS)]
    large = dataclasses.replace(
        answer,
        plan=dataclasses.replace(answer.plan, arms=arms, seeds=12),
        arms=[dataclasses.replace(answer.arms[1], arm=arm) for arm in arms],
        runs=[dataclasses.replace(answer.runs[0], arm=arm, seed=seed) for arm in arms for seed in range(12)],
        curves=[Curve(arm, seed, f"metric{k}", steps, steps, values) for arm in arms for seed in range(12) for k in range(5)],
    )
    html = page.render(large)
    assert 300_000 < len(html.encode()) < 1_000_000
    assert all(arm in html for arm in arms)


def test_colours_keep_their_contrast_in_both_themes(html):
    light, dark = (dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", html, re.DOTALL))
    assert light.keys() == dark.keys()

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        return sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    def contrast(a, b):
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    for theme in (light, dark):
        for name in ("ink", "muted", "link", "good", "mixed", "bad", "open"):
            for ground in ("paper", "raised", "zone"):
                assert contrast(theme[name], theme[ground]) >= 4.5, f"{name} on {ground}: WCAG 2.2, 1.4.3"
        for name in (*(f"arm{i}" for i in range(8)), "compute", "encode", "wire", "decode"):
            assert contrast(theme[name], theme["paper"]) >= 3, f"{name}: WCAG 2.2, 1.4.11"
