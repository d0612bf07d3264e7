"""Figures: what is drawn, what is shown as missing, and equal bytes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from unit.tables import synthetic_records as synthetic
from unit.tables.synthetic_records import Runs, cell, write_scores

from latreft.plots import figure_module, heatmaps, pruning
from latreft.plots.style import SMALLEST, save

SCRIPT = Path(__file__).parents[3] / "src" / "make_figure.py"
BARS = {"motivation": 3 * 2, "placement": 10 * 3, "pruning": 4, "selection": 5 * 2}
"""Bars with intervals in each whole figure."""


def context_of(runs, target, seeds=(0,), skip=(), **further):
    return runs.context(target, getattr(synthetic, target)(runs, seeds, skip), **further)


def draw(context):
    return figure_module(context.target).draw(context)


def gids(figure, kind):
    """What follows ``kind:`` in the gids of a figure's artists."""
    found = [artist.get_gid() for artist in figure.findobj() if str(artist.get_gid()).startswith(f"{kind}:")]
    return [gid.removeprefix(f"{kind}:") for gid in found]


def words(figure):
    return " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")


@pytest.mark.parametrize("target", BARS)
def test_every_bar_of_a_rate_has_its_interval(target, tmp_path):
    figure = draw(context_of(Runs(tmp_path), target))
    intervals = gids(figure, "interval")
    assert len(intervals) == BARS[target] and set(intervals) <= set(gids(figure, "bar"))
    assert not gids(figure, "missing") and not gids(figure, "seed")


@pytest.mark.parametrize("target", BARS)
@pytest.mark.parametrize("ratio", [1.0, 1.37])
def test_no_bar_is_cut_off_by_its_axis(target, ratio, tmp_path, monkeypatch):
    real = pruning.relative_flops
    raised = lambda context: {ledger: [ratio * v for v in values] for ledger, values in real(context).items()}  # noqa: E731
    monkeypatch.setattr(pruning, "relative_flops", raised)
    context = context_of(Runs(tmp_path), target)
    figure = draw(context)
    for axes in figure.axes:
        bars = [bar for bar in axes.patches if str(bar.get_gid()).startswith("bar:")]
        assert all(bar.get_height() <= axes.get_ylim()[1] for bar in bars)
    if target == "pruning":
        assert ("costs a prefix pass more" in pruning.caption(context)) == (ratio > 1)


def test_an_interval_spans_the_records_ends(tmp_path):
    context = context_of(Runs(tmp_path), "motivation")
    figure = draw(context)
    lines = [artist for artist in figure.findobj() if artist.get_gid() == "interval:main:Suffix window:gcg"]
    pooled = context.pooled
    row = pooled[(pooled["label"] == "Suffix window") & (pooled["source"] == "gcg") & (pooled["metric"] == "asr")].iloc[
        0
    ]
    drawn = lines[0].get_segments()[0][:, 1]
    assert list(drawn) == pytest.approx([100 * row["ci_low"], 100 * row["ci_high"]])


@pytest.mark.parametrize(
    ("target", "skipped", "panel"),
    [("motivation", "Suffix window", "main"), ("placement", "late", "layer"), ("pruning", "0.5", "main"),
     ("selection", "act_diff", "main")],
)  # fmt: skip
def test_a_missing_arm_is_a_hatched_place_that_says_so(target, skipped, panel, tmp_path):
    context = context_of(Runs(tmp_path), target, skip=[skipped])
    figure = draw(context)
    assert gids(figure, "missing") == [f"{panel}:{skipped}:all"]
    box = next(artist for artist in figure.findobj() if str(artist.get_gid()).startswith("missing:"))
    assert box.get_hatch() and "missing" in words(figure)
    assert f"Missing runs: {skipped}" in figure_module(target).caption(context)
    assert not any(gid.startswith(f"{panel}:{skipped}:") for gid in gids(figure, "bar"))


def test_one_missing_attack_leaves_the_other_bars(tmp_path):
    runs = Runs(tmp_path)
    context = context_of(runs, "placement")
    gone = [path for path in runs.paths if path.match("lat_reft__window_8/*/attack_random_token.json")]
    runs.paths = [path for path in runs.paths if path not in gone]
    figure = draw(runs.context("placement", context.cells))
    assert gids(figure, "missing") == ["window:8:random_token"] and "window:8:gcg" in gids(figure, "bar")


def test_no_records_at_all_still_draws(tmp_path):
    for target in BARS:
        runs = Runs(tmp_path / target)
        cells = getattr(synthetic, target)(runs)
        runs.paths = []
        context = runs.context(target, cells)
        figure = draw(context)
        assert gids(figure, "missing") and not gids(figure, "bar") and "no runs yet" in words(figure)


def test_three_seeds_show_each_seed_and_what_is_incomplete(tmp_path):
    runs = Runs(tmp_path)
    context = context_of(runs, "motivation", seeds=(0, 1, 2))
    figure = draw(context)
    dots = [artist for artist in figure.findobj() if artist.get_gid() == "seed:main:Suffix window:gcg"]
    assert list(dots[0].get_ydata()) == pytest.approx([31, 33, 35])
    assert "means over 3 seeds" in words(figure) and not gids(figure, "partial")
    runs.paths = [path for path in runs.paths if not path.match("seed2/attack_gcg.json")]
    figure = draw(runs.context("motivation", context.cells))
    assert len(gids(figure, "partial")) == 3 and "2/3" in words(figure)


def test_a_label_that_stands_for_two_arms_is_refused(tmp_path):
    runs = Runs(tmp_path)
    cells = [cell("lat_reft", label="same", dataset=dataset) for dataset in ("imdb", "enron")]
    for own in cells:
        runs.write(own)
    with pytest.raises(ValueError, match="'same' stands for imdb/pythia_1.4b/lat_reft and enron/pythia_1.4b/lat_reft"):
        draw(runs.context("motivation", cells))


def test_records_of_another_scale_are_refused(tmp_path):
    runs = Runs(tmp_path, "smoke")
    context = context_of(runs, "motivation", scale="paper")
    with pytest.raises(ValueError, match="scale 'smoke' was given to a target of scale 'paper'"):
        draw(context)


@pytest.mark.parametrize("target", BARS)
def test_scale_and_n_stand_in_figure_and_caption(target, tmp_path):
    context = context_of(Runs(tmp_path), target)
    figure = draw(context)
    for text in (words(figure), figure_module(target).caption(context)):
        assert "Scale: small (SmolLM2 on one GPU)" in text and "100 (" in text and "Wilson" in text


@pytest.mark.parametrize("target", BARS)
def test_type_is_readable_at_final_size(target, tmp_path):
    figure = draw(context_of(Runs(tmp_path), target))
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= SMALLEST


@pytest.mark.parametrize("target", BARS)
def test_nothing_overlaps_or_leaves_the_page(target, tmp_path):
    figure = draw(context_of(Runs(tmp_path), target))
    figure.draw_without_rendering()
    page = figure.bbox
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for text, box in boxes:
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1 and page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, text
    for i, (first, a) in enumerate(boxes):
        for second, b in boxes[i + 1 :]:
            width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
            assert width < 1 or height < 1, f"{first!r} and {second!r} overlap"


def test_layers_are_shown_with_their_numbers(tmp_path):
    figure = draw(context_of(Runs(tmp_path), "placement"))
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == [
        "early\n(layer 4)", "middle\n(layer 12)", "late\n(layer 22)",
    ]  # fmt: skip


def test_flops_are_relative_to_no_pruning(tmp_path):
    context = context_of(Runs(tmp_path), "pruning")
    ratios = pruning.relative_flops(context)
    assert list(ratios) == [f"cost_{name}_flops_per_example" for name in ("paper", "uniform", "measured")]
    assert ratios["cost_uniform_flops_per_example"] == pytest.approx([1, 0.8875, 0.775, 0.6625])
    figure = draw(context)
    heights = {
        artist.get_gid(): artist.get_height() for artist in figure.findobj() if str(artist.get_gid()).startswith("bar:")
    }
    assert heights["bar:main:0.5:cost_uniform_flops_per_example"] == pytest.approx(77.5)


def test_without_an_unpruned_run_relative_flops_are_missing(tmp_path):
    context = context_of(Runs(tmp_path), "pruning", skip=["0.0"])
    figure = draw(context)
    missing = gids(figure, "missing")
    assert "main:0.0:all" in missing and "main:0.25:cost_paper_flops_per_example" in missing
    assert "main:0.25:gcg" in gids(figure, "bar") and pruning.NO_BASE.capitalize() in words(figure)


def test_a_ledger_that_is_not_reported_is_left_out(tmp_path):
    runs = Runs(tmp_path)
    cells = [cell("lat_reft", label=label, arm=f"lat_reft__{label}") for label in ("0.0", "0.5")]
    for own in cells:
        runs.write(own, cost=synthetic.costs(measured=None))
    assert "cost_measured_flops_per_example" not in pruning.relative_flops(runs.context("pruning", cells))


def test_the_controls_stand_apart(tmp_path):
    figure = draw(context_of(Runs(tmp_path), "selection"))
    ticks = figure.axes[0].get_xticks()
    assert np.diff(ticks)[2] > np.diff(ticks)[1] and "controls" in words(figure)


# --- heatmaps ---


def scores_path(folder, model="pythia_1.4b", dataset="imdb"):
    return folder / "runs" / dataset / model / "scores" / "scores.safetensors"


def heat_context(folder, paths):
    return Runs(folder).context("heatmaps_imdb", [], scores=paths)


def test_bins_hold_the_kept_share():
    mask = np.zeros((2, 1000), dtype=np.uint8)
    mask[0, :4] = 1
    shares = heatmaps.binned(mask)
    assert shares.shape == (2, 250) and shares[0, 0] == 1 and shares[0, 1:].max() == 0 and shares[1].max() == 0
    ragged = heatmaps.binned(np.ones((1, 300), dtype=np.uint8), 256)
    assert ragged.shape == (1, 150) and ragged.min() == 1
    assert heatmaps.binned(np.ones((1, 7), dtype=np.uint8), 3).tolist() == [[1, 1, 1]]


def test_an_emptied_layer_is_marked(tmp_path):
    path = write_scores(scores_path(tmp_path), layers=6, neurons=300, emptied=[6])
    masks = heatmaps.read_masks(path)
    assert heatmaps.layer_shares(masks["act_grad"])[5] == 0
    figure = draw(heat_context(tmp_path, [path]))
    marks = [artist for artist in figure.findobj() if artist.get_gid() == "emptied"]
    assert [list(mark.get_ydata()) for mark in marks] == [[6], [6]]
    image = next(artist for artist in figure.findobj() if artist.get_gid() == "map")
    assert np.asarray(image.get_array())[5].max() == 0
    assert "a layer without any neuron" in words(figure)
    bars = [artist for artist in figure.findobj() if artist.get_gid() == "share:1"]
    assert bars[0].get_width() == pytest.approx(100 * heatmaps.layer_shares(masks["act_grad"])[0])


def test_a_missing_score_file_is_a_hatched_row(tmp_path):
    there = write_scores(scores_path(tmp_path), layers=4, neurons=64)
    context = heat_context(tmp_path, [there, scores_path(tmp_path, "qwen2.5_3b")])
    figure = draw(context)
    assert len([artist for artist in figure.findobj() if artist.get_gid() == "missing"]) == 4
    assert "Qwen2.5-3B layer" in words(figure) and "Missing: Qwen2.5-3B." in heatmaps.caption(context)


def test_scores_without_masks_are_an_error(tmp_path):
    from safetensors.numpy import save_file

    path = scores_path(tmp_path)
    path.parent.mkdir(parents=True)
    save_file({"act_grad": np.ones((2, 2))}, path)
    with pytest.raises(ValueError, match="scores.safetensors has no tensor 'keep_act_grad'"):
        heatmaps.read_masks(path)
    save_file({f"keep_{rule}": np.full((2, 2), 3, np.uint8) for rule in ("act_grad", "act_diff")}, path)
    with pytest.raises(ValueError, match="keep_act_grad must be zeros and ones"):
        heatmaps.read_masks(path)


def test_calibration_size_and_data_set_stand_in_the_foot(tmp_path):
    runs = Runs(tmp_path / "records")
    own = cell("scores", arm="classifier")
    runs.record(own, "scores", {}, settings={"calibration": 256})
    path = write_scores(scores_path(tmp_path), layers=4, neurons=64)
    text = words(draw(runs.context("heatmaps_imdb", [], scores=[path])))
    assert "n = 256 calibration examples" in text and "data set: IMDB" in text and "75% of all neurons kept" in text


def test_an_unknown_figure_lists_the_known_ones():
    with pytest.raises(ValueError, match="no figure is called 'plot'.*heatmaps, motivation"):
        figure_module("plot")


# --- bytes ---

RUN = """
import runpy, sys, types
sys.path[:0] = sys.argv[3:5]
import synthetic_records as s
from pathlib import Path
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
runs = s.Runs(folder)
cells = s.placement(runs, skip=["4"])
space = types.SimpleNamespace
jobs = {"placement": space(records=[str(p) for p in runs.paths]), "heatmaps_imdb": space(scores=str(
    s.write_scores(folder / "runs/imdb/pythia_1.4b/scores/scores.safetensors", 6, 300)))}
for target, given in jobs.items():
    job = space(input=given, output=space(pdf=str(out / f"{target}.pdf"), png=str(out / f"{target}.png")),
        log=[str(folder / "logs" / f"{target}.log")], params=space(target=target, title="T", scale="small", scale_title="One GPU",
        titles=s.TITLES, cells=cells if target == "placement" else []))
    runpy.run_path(sys.argv[5], {"snakemake": job})
"""


def test_the_script_gives_equal_bytes_in_two_processes(tmp_path):
    for run in ("a", "b"):
        arguments = [
            tmp_path / f"records_{run}",
            tmp_path / run,
            SCRIPT.parent,
            Path(synthetic.__file__).parent,
            SCRIPT,
        ]
        environment = os.environ | {"PYTHONHASHSEED": {"a": "1", "b": "2"}[run], "MPLBACKEND": "Agg"}
        subprocess.run([sys.executable, "-c", RUN, *map(str, arguments)], check=True, env=environment)
    for name in ("placement.pdf", "placement.png", "heatmaps_imdb.pdf", "heatmaps_imdb.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    content = (tmp_path / "a" / "placement.pdf").read_bytes()
    assert b"CreationDate" not in content and b"Software" not in (tmp_path / "a" / "placement.png").read_bytes()


def test_saving_leaves_nothing_beside(tmp_path):
    save(
        draw(context_of(Runs(tmp_path / "records"), "motivation")),
        tmp_path / "out" / "f.pdf",
        tmp_path / "out" / "f.png",
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["f.pdf", "f.png"]
