"""What must hold for every method, in both tasks."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import notela
from conftest import TASKS, Net, moved, same, weights
from notela import guard, methods
from notela.methods import NOTELA, NRC, SHOT, DropoutStudent, Method, Preset, PseudoLabel

Quick = Callable[..., notela.Result]
NORM = {"bn.weight", "bn.bias", "ln.weight", "ln.bias"}
STATISTICS = {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
HEAD = {"head.weight", "head.bias"}
PARAMETERS = NORM | HEAD | {"conv.weight", "conv.bias", "hidden.weight", "hidden.bias"}

# One instance of each code path; thresholds low enough that an untrained network passes them.
CASES: dict[str, Method] = {
    "adabn": methods.AdaBN(),
    "adabn-exact": methods.AdaBN(exact=True),
    "tent": methods.TENT(),
    "shot": SHOT(beta=0.3),
    "shot-im": SHOT(beta=0.0),
    "pseudo_label": PseudoLabel(threshold=0.1),
    "dust": methods.DUST(passes=2, threshold=0.9),
    "nrc": NRC(k=3, extended_k=2),
    "dropout_student-epoch": DropoutStudent(alpha=0.5, refresh="epoch"),
    "dropout_student-iteration": DropoutStudent(alpha=0.5, refresh="iteration"),
    "notela-epoch": NOTELA(k=4, refresh="epoch", iterations=3),
    "notela-iteration": NOTELA(k=4, refresh="iteration", normalisation="symmetric"),
    "rpl": methods.RPL(q=0.8),
    "aad": methods.AaD(k=3, beta=2.0),
    "eta": methods.ETA(margin=0.95, redundancy=0.97),
    "lame": methods.LAME(k=4),
}


def preset(case: str, **policies: object) -> Preset:
    start = Preset(CASES[case], learning_rate=1e-2, epochs=2, batch_size=16)
    if case.startswith("adabn"):
        start = dataclasses.replace(start, trainable="none", statistics="target")
    if case == "lame":  # refuses statistics of the target, which would move
        policies |= {"trainable": "none", "statistics": "source"}
    return dataclasses.replace(start, **policies)


@pytest.mark.parametrize("said", ["better", "worse"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_a_guard_keeps_what_is_better_and_goes_back_from_what_is_worse(
    case: str, task: str, said: str, net: Net, x: Tensor, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = quick(net, x, task=task, method=preset(case))
    monkeypatch.setattr(guard, "compare", lambda *_: (said, "so it was told"))
    monkeypatch.setattr(guard, "collapsed", lambda *_: False)
    guarded = quick(net, x, task=task, method=preset(case, guard="act"))
    assert same(guarded.model, free.model if said == "better" else net)
    assert guarded.verdict.epoch == (2 if said == "better" else 0)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("statistics", ["source", "target"])
@pytest.mark.parametrize("trainable", ["norm", "all"])
@pytest.mark.parametrize("case", CASES)
def test_what_moves_and_what_does_not(
    case: str, trainable: str, statistics: str, task: str, net: Net, x: Tensor, quick: Quick
) -> None:
    if case.startswith("adabn"):
        policy, expected = preset(case), set(STATISTICS)
    elif case == "lame":
        policy, expected = preset(case), set()
    else:
        policy = preset(case, trainable=trainable, statistics=statistics)
        expected = set(NORM if trainable == "norm" else PARAMETERS)
        if case.startswith("shot"):
            expected -= HEAD
        if statistics == "target":
            expected |= STATISTICS
    before = weights(net)
    result = quick(net, x, task=task, method=policy)
    assert moved(net, result.model) == expected
    assert all(torch.equal(before[name], now) for name, now in weights(net).items()), "the source model is untouched"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_same_seed_same_bits_other_seed_other_bits(case: str, task: str, net: Net, x: Tensor, quick: Quick) -> None:
    first, again = (quick(net, x, task=task, method=preset(case), seed=3) for _ in range(2))
    assert same(first.model, again.model)
    assert first.history == again.history
    other = quick(net, x, task=task, method=preset(case), seed=4)
    if case not in ("adabn-exact", "lame"):  # pooled moments hardly feel the order, and nothing nothing at all
        assert not same(first.model, other.model)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_labels_in_the_data_change_nothing(case: str, task: str, net: Net, x: Tensor, quick: Quick) -> None:
    plain = quick(net, TensorDataset(x), task=task, method=preset(case))
    labelled = quick(net, TensorDataset(x, torch.randint(0, 5, (70,))), task=task, method=preset(case))
    assert same(plain.model, labelled.model)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_resume_equals_uninterrupted_bit_for_bit(
    case: str, task: str, net: Net, x: Tensor, quick: Quick, tmp_path: object
) -> None:
    policy = preset(case, statistics="target", schedule="cosine")
    settings = {"task": task, "method": policy, "epochs": 4, "seed": 5}
    whole = quick(net, x, **settings)

    class Cut:
        """An evaluator that pulls the plug after two epochs."""

        calls = 0

        def __call__(self, predict: object) -> dict[str, float]:
            self.calls += 1
            if self.calls == 4:  # source, epoch 1, epoch 2, and in epoch 3
                raise KeyboardInterrupt
            return {"score": float(self.calls)}

    with pytest.raises(KeyboardInterrupt):
        quick(net, x, **settings, run_dir=tmp_path, evaluator=Cut())
    resumed = quick(net, x, **settings, run_dir=tmp_path)
    assert same(whole.model, resumed.model)
    assert resumed.source == {"score": 1.0}
    keep = [{k: v for k, v in record.items() if k != "evaluation"} for record in resumed.history]
    assert keep == whole.history


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_history_tells_what_the_issue_promises(case: str, task: str, net: Net, x: Tensor, quick: Quick) -> None:
    history = quick(net, x, task=task, method=preset(case)).history
    assert [record["epoch"] for record in history] == [1, 2]
    for record in history:
        for name in ("confidence", "entropy", "marginal_entropy", "positives"):
            assert record[name] >= 0
        assert (record["loss"] is None) == case.startswith(("adabn", "lame"))
    has_labels = case.startswith(("pseudo", "dust", "dropout", "notela", "rpl")) or case == "shot"
    assert (history[1]["changed"] is not None) == has_labels
    assert history[0]["changed"] is None
    assert (history[1]["degree"] is not None) == case.startswith(("nrc", "notela"))


@pytest.mark.parametrize("task", TASKS)
def test_notela_without_laplacian_is_dropout_student(task: str, net: Net, x: Tensor, quick: Quick) -> None:
    for refresh in ("epoch", "iteration"):
        student = quick(net, x, task=task, method=Preset(DropoutStudent(0.3, refresh)))
        notela_ = quick(net, x, task=task, method=Preset(NOTELA(0.3, refresh, k=4, lambda_=0.0)))
        assert same(student.model, notela_.model)


@pytest.mark.parametrize("task", TASKS)
def test_a_graph_without_edges_is_dropout_student(
    task: str, net: Net, x: Tensor, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    from notela.methods import notela as module

    n = len(x)
    empty = torch.sparse_csr_tensor(torch.zeros(n + 1).long(), [], [], (n, n), check_invariants=False)
    monkeypatch.setattr(module, "mutual_affinity", lambda *_: empty)
    monkeypatch.setattr(module, "is_mutual", lambda rows, lists, _: torch.zeros_like(lists, dtype=torch.bool))
    for refresh in ("epoch", "iteration"):
        student = quick(net, x, task=task, method=Preset(DropoutStudent(0.3, refresh)))
        lonely = quick(net, x, task=task, method=Preset(NOTELA(0.3, refresh, k=4, lambda_=2.0)))
        assert same(student.model, lonely.model)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", methods.PRESET_NAMES)
@pytest.mark.parametrize("method", methods.names())
def test_every_preset_runs(method: str, name: str, task: str, net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(net, x, task=task, method=methods.preset(method, name), epochs=1)
    assert len(result.history) == 1
    assert all(t.isfinite().all() for t in weights(result.model).values())


def test_names_presets_and_instances_mean_the_same(net: Net, x: Tensor, quick: Quick) -> None:
    by_name = quick(net, x, task="multilabel", method="notela")
    by_preset = quick(net, x, task="multilabel", method=methods.preset("notela", "audio-multilabel"))
    by_instance = quick(net, x, task="multilabel", method=NOTELA(alpha=1.0, refresh="epoch", k=5, lambda_=1.0))
    assert same(by_name.model, by_preset.model)
    assert same(by_name.model, by_instance.model)
    assert quick(net, x, task="singlelabel", method="tent").description["settings"]["statistics"] == "target"


def test_arguments_override_the_preset(net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(
        net, x, task="singlelabel", method="tent", trainable=["head.*"], learning_rate=0.5, statistics="source"
    )
    assert moved(net, result.model) == HEAD
    assert result.description["settings"]["learning_rate"] == 0.5


def test_a_users_own_method_needs_only_a_loss(net: Net, x: Tensor, quick: Quick) -> None:
    @dataclasses.dataclass(frozen=True)
    class Shrink(Method):
        name = "shrink"

        def loss(self, batch: methods.Batch, state: object) -> Tensor:
            return state.student(batch.x).logits.square().mean()  # type: ignore[attr-defined]

    result = quick(net, x, task="singlelabel", method=Shrink())
    assert moved(net, result.model) == NORM
    assert result.history[1]["loss"] < result.history[0]["loss"] * 1.5


# METHODS as published, cell by cell: settings; what moves, rate, schedule, student dropout, statistics.
TABLE = """
adabn            image              ()                  none 0    constant clean target
adabn            audio-multilabel   ()                  none 0    constant noisy target
adabn            audio-singlelabel  ()                  none 0    constant noisy target
tent             image              ()                  norm 1e-4 cosine   clean target
tent             audio-multilabel   ()                  norm 1e-5 cosine   noisy source
tent             audio-singlelabel  ()                  all  1e-3 cosine   noisy source
shot             image              (0.3,)              norm 1e-4 cosine   clean target
shot             audio-multilabel   (0.0,)              norm 1e-5 cosine   clean source
shot             audio-singlelabel  (0.6,)              all  1e-3 cosine   noisy source
pseudo_label     image              (0.9,)              norm 1e-3 cosine   clean target
pseudo_label     audio-multilabel   (0.5,)              norm 1e-5 constant noisy source
pseudo_label     audio-singlelabel  (0.5,)              norm 1e-3 constant noisy source
dropout_student  image              (0.1,'iteration')   norm 1e-4 constant noisy target
dropout_student  audio-multilabel   (1.0,'epoch')       norm 1e-4 constant noisy source
dropout_student  audio-singlelabel  (0.5,'epoch')       all  1e-3 cosine   noisy source
dust             image              (4,0.8)             norm 1e-5 cosine   clean target
dust             audio-multilabel   (4,0.9)             all  1e-4 cosine   noisy source
dust             audio-singlelabel  (4,0.9)             all  1e-4 constant noisy source
nrc              image              (15,15,0.2)         norm 1e-5 cosine   clean target
nrc              audio-multilabel   (5,5,0.1)           norm 1e-5 cosine   noisy source
nrc              audio-singlelabel  (15,10,0.1)         all  1e-4 cosine   noisy source
notela           image              (1.0,'iteration',15,2.0) norm 1e-4 constant noisy target
notela           audio-multilabel   (1.0,'epoch',5,1.0)      norm 1e-4 constant noisy source
notela           audio-singlelabel  (1.0,'iteration',15,2.0) all  1e-4 cosine   noisy source
"""


@pytest.mark.parametrize("row", TABLE.strip().splitlines())
def test_presets_are_those_of_the_table(row: str) -> None:
    method, name, settings, trainable, rate, schedule, student, statistics = row.split()
    got = methods.preset(method, name)
    assert got == Preset(
        type(got.method)(*ast.literal_eval(settings)),
        trainable,
        float(rate),
        schedule,  # type: ignore[arg-type]
        statistics,  # type: ignore[arg-type]
        noise=student == "noisy",
        epochs=10,
        batch_size=64,
    )
    assert got.method.name == method


def test_grids_are_those_of_the_paper() -> None:
    common = {
        (rate, trainable, noise, statistics, schedule)
        for rate in (1e-5, 1e-4, 1e-3)
        for trainable in ("norm", "all")
        for noise in (True, False)
        for statistics in ("source", "target")
        for schedule in ("cosine", "constant")
    }
    own = {
        "tent": {()},
        "shot": {(beta,) for beta in (0.0, 0.3, 0.6, 0.9)},
        "pseudo_label": {(threshold,) for threshold in (0.0, 0.5, 0.9, 0.95)},
        "dropout_student": {(alpha, refresh) for alpha in (0.1, 1.0) for refresh in ("iteration", "epoch")},
        "dust": {(passes, threshold) for passes in (2, 3, 4) for threshold in (0.8, 0.9, 0.99)},
        "nrc": {(k, m, base) for k in (5, 10, 15) for m in (5, 10, 15) for base in (0.1, 0.2)},
        "notela": {
            (alpha, refresh, k, alpha)
            for alpha in (0.1, 1.0)
            for refresh in ("iteration", "epoch")
            for k in (5, 10, 15)
        },
    }
    for name, settings in own.items():
        points = methods.grid(name)
        kind = type(points[0].method)
        got = {(p.method, (p.learning_rate, p.trainable, p.noise, p.statistics, p.schedule)) for p in points}
        assert got == {(kind(*values), policies) for values in settings for policies in common}
        assert len(points) == len(got)
    assert {p.noise for p in methods.grid("adabn")} == {True, False}
    assert len(methods.grid("adabn")) == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: NOTELA(k=0), "k=0 must be a whole number of at least 1"),
        (lambda: NOTELA(alpha=-1), "alpha=-1 must be a number of at least 0"),
        (lambda: NOTELA(alpha=float("nan")), "alpha=nan"),
        (lambda: NOTELA(lambda_=-0.5), "lambda_=-0.5"),
        (lambda: NOTELA(normalisation="column"), "'column' is not one of 'row', 'symmetric'"),
        (lambda: NOTELA(iterations=2, refresh="iteration"), "needs refresh='epoch'"),
        (lambda: DropoutStudent(refresh="daily"), "'daily' is not one of 'epoch', 'iteration'"),
        (lambda: PseudoLabel(threshold=1.0), "threshold=1.0 must be at least 0 and below 1"),
        (lambda: methods.DUST(passes=0), "passes=0"),
        (lambda: NRC(k=2.5), "k=2.5 must be a whole number"),
        (lambda: PseudoLabel(threshold="high"), "threshold=high must be"),
        (lambda: SHOT(beta=-0.1), "beta=-0.1"),
        (lambda: NRC(extended_k=0), "extended_k=0"),
        (lambda: methods.RPL(q=1.5), "q=1.5 must be a number from 0 to 1"),
        (lambda: methods.AaD(k=0), "k=0"),
        (lambda: methods.AaD(beta=-1.0), "beta=-1.0"),
        (lambda: methods.ETA(margin=-0.4), "margin=-0.4"),
        (lambda: methods.ETA(redundancy=float("nan")), "redundancy=nan"),
        (lambda: methods.LAME(k=0), "k=0"),
        (lambda: methods.LAME(lambda_=-1.0), "lambda_=-1.0"),
        (lambda: methods.LAME(iterations=0), "iterations=0"),
        (lambda: methods.LAME(metric="taxi"), "'taxi' is not one of"),
        (lambda: methods.AdaBN(momentum=0.0), "momentum=0.0"),
        (lambda: methods.AdaBN(momentum=0.1, exact=True), "has no momentum"),
        (lambda: Preset(methods.TENT(), epochs=0), "epochs=0"),
        (lambda: Preset(methods.TENT(), learning_rate=-1.0), "learning_rate=-1.0"),
        (lambda: Preset(methods.TENT(), schedule="linear"), "'linear' is not one of"),
        (lambda: Preset(methods.TENT(), statistics="target", batch_size=1), "a batch of one has no variance"),
        (lambda: methods.preset("notella", "image"), "'notella' is not one of .*'notela'"),
        (lambda: methods.preset("notela", "audio"), "'audio' is not one of 'image'"),
        (lambda: methods.resolve(3, "singlelabel"), "method=3 is not a name"),
    ],
)
def test_impossible_settings_are_refused_by_name(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(notela.NotelaError, match=sentence):
        make()


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NOTELA().k = 3  # type: ignore[misc]
    assert copy.deepcopy(NOTELA()) == NOTELA()
