"""The loop: batches and noise, evaluation, refusals, notes, precision."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

import notela
from conftest import CLASSES, TASKS, Net, same
from notela.methods import NOTELA, TENT, Batch, Method, Preset
from notela.state import State

Quick = Callable[..., notela.Result]


@dataclass(frozen=True)
class Spy(Method):
    """Watches the loop; its loss moves the parameters a little."""

    name = "spy"

    def loss(self, batch: Batch, state: State) -> Tensor:
        LOG.append((state.epoch, batch.rows.tolist(), torch.rand(()).item()))
        return state.student(batch.x).logits.mean()


LOG: list[tuple[int, list[int], float]] = []


def test_each_epoch_sees_every_row_once_in_a_new_order_with_new_noise(net: Net, x: Tensor, quick: Quick) -> None:
    LOG.clear()
    quick(net, x, task="singlelabel", method=Spy(), epochs=3)
    orders = [[row for epoch, rows, _ in LOG if epoch == e for row in rows] for e in (1, 2, 3)]
    assert all(sorted(order) == list(range(70)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert len({noise for _, _, noise in LOG}) == len(LOG)
    assert [len(rows) for epoch, rows, _ in LOG if epoch == 1] == [16, 16, 16, 16, 6]


def test_the_callers_random_numbers_are_left_alone(net: Net, x: Tensor, quick: Quick) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    quick(net, x, task="singlelabel", method="tent")
    assert torch.equal(torch.rand(3), expected)


def test_cosine_decay_goes_to_zero_over_the_whole_run(net: Net, x: Tensor, quick: Quick) -> None:
    rates: list[float] = []
    original = torch.optim.Adam.step

    def step(self: torch.optim.Adam, *args: object) -> object:
        rates.append(self.param_groups[0]["lr"])
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        quick(net, x, task="singlelabel", method=Preset(TENT(), schedule="cosine", learning_rate=0.1))
    assert rates == pytest.approx([0.05 * (1 + math.cos(math.pi * t / 10)) for t in range(10)])


@pytest.mark.parametrize("task", TASKS)
def test_the_optimiser_is_plain_adam_on_the_entropy(task: notela.task.Task, net: Net, x: Tensor, quick: Quick) -> None:
    """TENT with everything moving, full batches and no noise, against ten lines of torch."""
    policy = Preset(TENT(), "all", 1e-2, "constant", "source", noise=False, epochs=3, batch_size=70)
    result = notela.adapt(net, x, task=task, method=policy, progress=False)
    twin = Net().eval()
    twin.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2)
    for _ in range(3):
        loss = notela.task.entropy(twin(x), task).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(result.model(x), twin(x), rtol=1e-3, atol=1e-4)


def test_evaluator_sees_source_and_every_epoch_and_changes_nothing(net: Net, x: Tensor, quick: Quick) -> None:
    class Vandal:
        """Breaks everything it can reach."""

        def __call__(self, predict: object) -> dict[str, float]:
            predict(x).zero_()  # type: ignore[operator]
            for part in vars(predict).values():
                for p in part.parameters() if isinstance(part, nn.Module) else ():
                    p.data.zero_()
            torch.manual_seed(99)
            return {"score": 1}

    plain = quick(net, x, task="singlelabel", method="notela")
    watched = quick(net, x, task="singlelabel", method="notela", evaluator=Vandal())
    assert same(plain.model, watched.model)
    assert watched.source == {"score": 1.0}
    assert [record["evaluation"] for record in watched.history] == [{"score": 1.0}] * 2
    assert "evaluation" not in plain.history[0]


@pytest.mark.parametrize("classes", [None, [4, 1, 2]])
@pytest.mark.parametrize("task", TASKS)
def test_ready_made_evaluator(
    task: notela.task.Task, classes: list[int] | None, net: Net, x: Tensor, quick: Quick
) -> None:
    kept = list(range(CLASSES)) if classes is None else classes
    g = torch.Generator().manual_seed(0)
    if task == "singlelabel":
        labels = torch.tensor(kept)[torch.randint(0, len(kept), (70,), generator=g)]
    else:
        labels = (torch.rand(70, CLASSES, generator=g) < 0.4).int()
    evaluator = notela.Evaluator(x, labels, task=task)
    result = quick(net, x, task=task, method="notela", classes=classes, evaluator=evaluator)
    p = notela.predict(result.model, x, task=task, classes=classes)
    assert p.shape == (70, len(kept))
    last = result.history[-1]["evaluation"]
    if task == "singlelabel":
        chosen = torch.tensor(kept)[p.argmax(1)]
        assert set(last) == {"accuracy", "per_class"}
        assert last["accuracy"] == pytest.approx((chosen == labels).float().mean().item())
        assert last["per_class"] == pytest.approx(balanced_accuracy_score(labels, chosen))
    else:
        assert set(last) == {"map", "cmap", "auroc", "top1"}
        assert last["map"] == pytest.approx(notela.metrics.mean_average_precision(p, labels[:, kept]), abs=1e-6)


def test_predict_is_clean_and_keeps_classes_before_softmax(net: Net, x: Tensor) -> None:
    expected = net(x)[:, [3, 0]].softmax(1).detach()
    training = net.train()
    torch.testing.assert_close(notela.predict(training, x, task="singlelabel", classes=[3, 0]), expected)
    assert training.training, "the model handed in is left as it was"
    assert training.bn.num_batches_tracked == 0


def test_evaluator_refuses_labels_that_do_not_fit(net: Net, x: Tensor, quick: Quick) -> None:
    with pytest.raises(notela.NotelaError, match=r"shape \(70, 2\).* do not fit task='singlelabel'"):
        notela.Evaluator(x, torch.zeros(70, 2), task="singlelabel")
    with pytest.raises(notela.NotelaError, match="type <U5 do not fit"):
        notela.Evaluator(x, ["robin"] * 70, task="singlelabel")
    threes = notela.Evaluator(x, torch.full((70,), 3), task="singlelabel")
    with pytest.raises(notela.NotelaError, match="class 3, which classes does not keep"):
        quick(net, x, task="singlelabel", classes=[0, 1], evaluator=threes)
    nothing = notela.Evaluator(x, torch.zeros(70, CLASSES), task="multilabel")
    with pytest.raises(notela.NotelaError, match="no positive entry"):
        quick(net, x, task="multilabel", evaluator=nothing)
    for wrong, sentence in (((x, x), "evaluator is a tuple"), (lambda _: None, "evaluator returned None")):
        with pytest.raises(notela.NotelaError, match=sentence):
            quick(net, x, task="multilabel", evaluator=wrong)


def test_a_class_subset_equals_a_smaller_head(net: Net, x: Tensor, quick: Quick) -> None:
    small = Net().eval()
    small.load_state_dict({k: v for k, v in net.state_dict().items() if not k.startswith("head")}, strict=False)
    small.head = nn.Linear(12, 2)
    small.head.load_state_dict({"weight": net.head.weight[[3, 1]], "bias": net.head.bias[[3, 1]]})
    a = quick(net, x, task="multilabel", method="notela", classes=[3, 1])
    b = quick(small, x, task="multilabel", method="notela")
    torch.testing.assert_close(a.model(x)[:, [3, 1]], b.model(x))


def test_model_without_dropout_gets_some_and_the_result_says_so(x: Tensor, quick: Quick) -> None:
    model = nn.Sequential(nn.Linear(8, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4)).eval()
    for method in ("notela", "dropout_student", "dust"):
        result = quick(model, x, task="multilabel", method=method)
        assert any("no dropout: noisy passes drop 10% of the embedding" in note for note in result.notes)
        assert not any(m._forward_pre_hooks for m in result.model.modules())
    still = quick(model, x, task="multilabel", method="dropout_student", noise=False)
    assert still.notes == [], "no noisy pass, so nothing to say"
    silent = quick(model, x, task="multilabel", method="tent", noise=True)
    assert silent.notes == ["noise=True has no effect: the model has no dropout"]
    assert quick(model, x, task="multilabel", method="tent", noise=False).notes == []


def test_fewer_rows_than_k_is_handled_and_said(net: Net, x: Tensor, quick: Quick) -> None:
    for method in (NOTELA(k=15, refresh="epoch"), NOTELA(k=15, refresh="iteration"), notela.methods.NRC(k=15)):
        result = quick(net, x[:6], task="singlelabel", method=method)
        assert any("k=15 neighbours asked" in note and "k=5" in note for note in result.notes)


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        (70, {"method": "tent", "batch_size": 1}, "a batch of one has no variance"),
        (1, {"method": "tent"}, "needs two items or more"),
        (1, {"method": "notela", "statistics": "source"}, "one item, which has no neighbours"),
        (70, {"classes": [2]}, "one kept class with task='singlelabel'"),
        (70, {"task": "single"}, "task='single' is not one of"),
        (70, {"method": "adabn", "statistics": "source"}, "statistics='source' freezes them"),
        (70, {"precision": "fp8"}, "precision='fp8'"),
        (70, {"device": "cuda:7"}, "device='cuda:7' cannot be used here"),
        (70, {"device": "gpu"}, "device='gpu' cannot be used here"),
        (70, {"method": "tent", "trainable": "none"}, "no parameter chosen by trainable='none'"),
        (70, {"epochs": 0}, "epochs=0 must be a whole number of at least 1"),
        (70, {"epochs": 2.5}, "epochs=2.5 must be a whole number"),
        (70, {"epochs": "3"}, "epochs='3' must be a whole number"),
        (70, {"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        (70, {"seed": 1.5}, "seed=1.5 must be"),
        (70, {"batch_size": 2.5}, "batch_size=2.5 must be"),
        (70, {"learning_rate": "fast"}, "learning_rate='fast' must be a number"),
        (70, {"noise": "off"}, "noise='off' must be True or False"),
        (70, {"trainable": 5}, "trainable=5 must be"),
    ],
)
def test_impossible_runs_are_refused_in_one_sentence(
    rows: int, settings: dict[str, object], sentence: str, net: Net, x: Tensor, quick: Quick
) -> None:
    with pytest.raises(notela.NotelaError, match=sentence) as error:
        quick(net, x[:rows], **{"task": "singlelabel", **settings})
    assert "\n" not in str(error.value)


def test_small_cases_that_must_work(net: Net, x: Tensor, quick: Quick) -> None:
    quick(net, x[:65], task="singlelabel", method="tent", batch_size=64)  # a lone last row, batch statistics
    quick(net, x[:1], task="multilabel", method="tent")  # one row, source statistics
    quick(net, x, task="multilabel", method="notela", classes=[2])  # one kept class, multi-label
    with pytest.raises(notela.NotelaError, match="no BatchNorm"):
        quick(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)), x, task="singlelabel", method="adabn")


def test_nan_input_and_nan_loss_name_the_rows(net: Net, x: Tensor, quick: Quick) -> None:
    bad = x.clone()
    bad[13, 2] = torch.nan
    with pytest.raises(notela.NotelaError, match="items 13;"):
        quick(net, bad, task="singlelabel", method="tent")

    class Overflow(nn.Module):
        """Fine at first; NaN for one row once its scale has moved."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            z = self.fc(self.norm(x))
            return torch.where((x[:, :1] == 7) & bool((self.norm.weight != 1).any()), torch.nan, z)

    special = x.clone()
    special[22, 0] = 7
    with pytest.raises(notela.NotelaError, match=r"loss became nan in epoch \d on items \[[\d, ]*22[\d, ]*\]"):
        quick(Overflow(), special, task="singlelabel", method="tent")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_runs_and_learns(precision: str, net: Net, x: Tensor, quick: Quick) -> None:
    result = quick(net, x, task="multilabel", method="notela", precision=precision)
    assert not same(net, result.model)
    assert all(t.isfinite().all() for t in result.model.state_dict().values())


def test_numpy_numbers_are_as_good_as_pythons(net: Net, x: Tensor, quick: Quick, tmp_path: object) -> None:
    settings = {
        "epochs": np.int64(2),
        "seed": np.int64(3),
        "learning_rate": np.float32(0.5),
        "batch_size": np.int64(16),
    }
    a = quick(net, x, task="singlelabel", method="tent", run_dir=tmp_path, classes=np.array([0, 2]), **settings)
    b = quick(net, x, task="singlelabel", method="tent", classes=torch.tensor([0, 2]), seed=3, learning_rate=0.5)
    assert same(a.model, b.model)


def test_adapting_inside_no_grad_or_inference_mode_works(net: Net, x: Tensor, quick: Quick) -> None:
    plain = quick(net, x, task="singlelabel", method="tent")
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert same(plain.model, quick(net, x, task="singlelabel", method="tent").model)


def test_augmentation_by_numpy_is_drawn_from_the_seed(net: Net, x: Tensor, quick: Quick, tmp_path: object) -> None:
    class Shaken(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 70

        def __getitem__(self, i: int) -> Tensor:
            return x[i] + np.random.rand() + random.random()  # noqa: NPY002

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    first = quick(net, Shaken(), task="singlelabel", method="notela", seed=1)
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    assert np.random.rand() == expected, "the caller's numbers are left alone"  # noqa: NPY002
    assert random.random() == random.Random(0).random()
    assert same(first.model, quick(net, Shaken(), task="singlelabel", method="notela", seed=1).model)


def test_an_evaluator_that_draws_random_numbers_changes_nothing(net: Net, x: Tensor, quick: Quick) -> None:
    class Shaken(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 70

        def __getitem__(self, i: int) -> Tensor:
            return x[i] + torch.rand(())

    def evaluate(predict: object) -> dict[str, float]:
        return {"drawn": float(torch.rand(7).sum())}

    settings = {"task": "singlelabel", "method": NOTELA(k=4, refresh="iteration")}
    assert same(quick(net, Shaken(), **settings).model, quick(net, Shaken(), **settings, evaluator=evaluate).model)


def test_infinite_statistics_stop_the_run(net: Net, x: Tensor, quick: Quick) -> None:
    huge = x.clone()
    huge[3] = 1e25
    with pytest.raises(notela.NotelaError, match="bn.running_var became NaN or infinite in epoch 1"):
        quick(net, huge, task="singlelabel", method="adabn")


def test_an_infinite_gradient_stops_the_run(x: Tensor, quick: Quick) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.norm(x)) + (self.norm.weight - self.norm.weight.detach()).abs().sum().sqrt()

    with pytest.raises(notela.NotelaError, match="norm.weight became NaN or infinite in epoch 1"):
        quick(Steep(), x, task="multilabel", method="tent", batch_size=70)


def test_sweeps_of_an_epoch_differ_by_noise_alone(net: Net, x: Tensor) -> None:
    """Batches that normalise themselves: another order would give other logits, and DUST would filter by luck."""
    from notela.classifier import Classifier
    from notela.data import Unlabelled

    preset = Preset(notela.methods.DUST(), statistics="target", batch_size=16)
    rows = Unlabelled(x, batch_size=16)
    state = State(Classifier(net, x[:2]), rows, "singlelabel", preset)
    first = state.sweep().logits
    torch.rand(5)
    assert torch.equal(first, state.sweep().logits)
    assert not torch.equal(first, state.sweep(noise=True).logits)
    state.epoch = 1
    assert not torch.equal(first, state.sweep().logits)


def test_outputs_that_are_probabilities_are_noted(x: Tensor, quick: Quick) -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3), nn.Softmax(1))
    result = quick(model, x, task="singlelabel", method="tent")
    assert any("probabilities, not logits" in note for note in result.notes)


def test_a_model_that_already_gives_embeddings(x: Tensor, quick: Quick) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.top = nn.Linear(8, 6), nn.LayerNorm(6), nn.Bilinear(6, 6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            f = torch.relu(self.norm(self.body(x)))
            return f, self.top(nn.functional.dropout(f, 0.2, self.training), f)

    quick(Pair(), x, task="multilabel", method="notela")
    with pytest.raises(notela.NotelaError, match="needs the classification head"):
        quick(Pair(), x, task="multilabel", method="shot")


def test_result_reads_well(net: Net, x: Tensor, quick: Quick) -> None:
    labels = torch.randint(0, CLASSES, (70,))
    result = quick(net, x, task="singlelabel", evaluator=notela.Evaluator(x, labels, task="singlelabel"))
    text = str(result)
    assert text.startswith("notela, singlelabel: 2 epochs\nlast epoch: ")
    assert "accuracy: " in text
    assert not result.model.training


def test_progress_bar_shows_epoch_loss_and_rate(
    net: Net, x: Tensor, quick: Quick, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    quick(net, x, task="singlelabel", method="tent", progress=True)
    shown = capsys.readouterr().err
    assert "epoch 2/2" in shown
    assert "loss" in shown
    quick(net, x, task="singlelabel", method="tent", progress=False)
    assert capsys.readouterr().err == ""
