"""Finding the head, the policies, and the switches of noise and statistics."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from conftest import Net, weights
from notela.classifier import Classifier, is_norm_layer
from notela.errors import NotelaError

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Wrapped(nn.Module):
    """A body and a head, answering in a chosen form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(8, 7), nn.Linear(7, 3)
        self.form = form

    def forward(self, x: Tensor) -> object:
        f = torch.relu(self.body(x))
        z = self.fc(f)
        return {
            "tensor": z,
            "object": SimpleNamespace(logits=z),
            "dict": {"logits": z, "hidden": f},
            "pair": (f, z),
            "scaled": 3 * z,
            "list": [z, z, z],
        }[self.form]


class ConvHead(nn.Module):
    """Fully convolutional: 1×1 head, then the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.relu(self.body(x[:, None, :, None].expand(-1, -1, -1, 5)))).mean((2, 3))


class FunctionalDropout(nn.Module):
    """Dropout without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.fc = nn.Linear(8, 30), nn.BatchNorm1d(30), nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(self.norm(self.body(x)), 0.5, self.training))


class DropPath(nn.Module):
    """Stochastic depth as timm writes it."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0:
            return x
        return x * (torch.rand(len(x), 1) > self.drop_prob) / (1 - self.drop_prob)


@pytest.mark.parametrize("form", ["tensor", "object", "dict", "pair"])
def test_head_and_embedding_are_found_in_every_form(form: str) -> None:
    model = Wrapped(form)
    classifier = Classifier(model, X)
    features, logits = classifier(X)
    assert classifier.head == "fc"
    torch.testing.assert_close(features, torch.relu(model.body(X)))
    torch.testing.assert_close(logits, model.fc(torch.relu(model.body(X))))


def test_head_on_tokens_gives_pooled_embedding() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.top = nn.Linear(2, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.top(torch.relu(self.body(x.view(-1, 4, 2)))).mean(1)

    model = Tokens()
    classifier = Classifier(model, X)
    assert classifier.head == "top"
    torch.testing.assert_close(classifier(X).features, torch.relu(model.body(X.view(-1, 4, 2))).mean(1))


def test_convolutional_head_gives_pooled_embedding() -> None:
    model = ConvHead()
    classifier = Classifier(model, X)
    assert classifier.head == "top"
    features, logits = classifier(X)
    assert features.shape == (6, 4)
    torch.testing.assert_close(nn.functional.linear(features, model.top.weight[:, :, 0, 0], model.top.bias), logits)


def test_hugging_face_model_head_norms_and_noise() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.EfficientNetConfig(
        num_channels=1,
        image_size=64,
        hidden_dim=128,
        width_coefficient=0.1,
        depth_coefficient=0.1,
        num_labels=4,
        dropout_rate=0.3,
    )
    model = transformers.EfficientNetForImageClassification(config)
    image = torch.randn(2, 1, 64, 64)
    classifier = Classifier(model, image)
    assert classifier.head == "classifier"
    assert classifier(image).features.shape[1] == config.hidden_dim
    assert classifier.has_noise(image)
    layers = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert layers > 20
    assert len(classifier.select("norm")) == 2 * layers


def test_head_that_is_not_the_output_lists_candidates_and_can_be_named() -> None:
    model = Wrapped("scaled")
    with pytest.raises(NotelaError, match="head=.*'body', 'fc'"):
        Classifier(model, X).require_head("this")
    named = Classifier(model, X, head="fc")
    torch.testing.assert_close(named(X).features, torch.relu(model.body(X)))
    with pytest.raises(NotelaError, match="'fcc' is not a layer.*'fc'"):
        Classifier(model, X, head="fcc")
    with pytest.raises(NotelaError, match="'body' does not give one number for each of the 3 classes"):
        Classifier(model, X, head="body")


def test_head_called_by_keyword_or_not_at_all() -> None:
    class Keyword(Wrapped):
        def __init__(self) -> None:
            super().__init__("tensor")
            self.unused = nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(input=torch.relu(self.body(x)))

    classifier = Classifier(Keyword(), X)
    assert classifier(X).features.shape == (6, 7)
    classifier.add_dropout(0.5)
    classifier.set_mode(noise=True, batch_statistics=False)
    assert not torch.equal(classifier(X).logits, classifier(X).logits)
    with pytest.raises(NotelaError, match="'unused' is not a layer that runs"):
        Classifier(Keyword(), X, head="unused")


def test_a_model_that_answers_otherwise_in_training_is_refused() -> None:
    class Distilled(Wrapped):
        def forward(self, x: Tensor) -> object:
            z = self.fc(torch.relu(self.body(x)))
            return (z, 2 * z) if self.training else z

    classifier = Classifier(Distilled("tensor"), X)
    classifier.set_mode(noise=True, batch_statistics=False)
    with pytest.raises(NotelaError, match="another kind of answer in training mode"):
        classifier(X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(NotelaError, match=r"too coarse.*model.float\(\)"):
        Classifier(Wrapped("tensor").to(dtype), X)


@pytest.mark.parametrize("thing", [Wrapped, lambda x: x, "resnet50", {}])
def test_what_is_no_module_is_refused(thing: object) -> None:
    with pytest.raises(NotelaError, match=r"expected a torch.nn.Module"):
        Classifier(thing, X)  # type: ignore[arg-type]


def test_a_model_that_answers_something_else_is_refused() -> None:
    with pytest.raises(NotelaError, match="returned list"):
        Classifier(Wrapped("list"), X)
    with pytest.raises(NotelaError, match=r"failed on the first 6 items, shape \(6, 3\)"):
        Classifier(Wrapped("tensor"), torch.randn(6, 3))


def test_the_users_model_is_untouched_by_everything(net: Net) -> None:
    before, flags = weights(net), [(m, m.training) for m in net.modules()]
    classifier = Classifier(net, X)
    classifier.select("norm")
    classifier.set_mode(noise=True, batch_statistics=True, update_statistics=True)
    classifier(X)
    assert all(torch.equal(before[name], now) for name, now in weights(net).items())
    assert all(m.training == flag for m, flag in flags)
    assert all(p.requires_grad for p in net.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())


def test_class_subset_is_applied_to_the_logits() -> None:
    model = Wrapped("tensor")
    torch.testing.assert_close(Classifier(model, X, classes=[2, 0])(X).logits, model(X)[:, [2, 0]])


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        ([], "keeps no class"),
        ([0, 3], "holds 3, but the model has outputs 0 to 2"),
        ([1, 1], "1 more than once"),
        ([True, False, True], "flatnonzero"),
        ([0.5], "must be a list of class numbers"),
        (["robin"], "must be a list of class numbers"),
        (2, "must be a list of class numbers"),
    ],
)
def test_impossible_class_subsets_are_refused(classes: object, sentence: str) -> None:
    with pytest.raises(NotelaError, match=sentence):
        Classifier(Wrapped("tensor"), X, classes=classes)  # type: ignore[arg-type]


def test_every_kind_of_norm_layer_counts() -> None:
    class ScaleNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

    class NormedLinear(nn.Linear):
        pass

    norms = [nn.BatchNorm1d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4), nn.LayerNorm(4), nn.GroupNorm(2, 4)]
    norms += [nn.InstanceNorm2d(4, affine=True), nn.RMSNorm(4), ScaleNorm()]
    assert all(is_norm_layer(m) for m in norms)
    assert not any(is_norm_layer(m) for m in (nn.Linear(4, 4), NormedLinear(4, 4), nn.Conv1d(4, 4, 1), nn.Dropout()))


def test_trainable_policies(net: Net) -> None:
    classifier = Classifier(net, X)
    everything = {name for name, _ in net.named_parameters()}
    assert set(classifier.select("norm")) == {"bn.weight", "bn.bias", "ln.weight", "ln.bias"}
    assert set(classifier.select("all")) == everything
    assert set(classifier.select("body")) == everything - {"head.weight", "head.bias"}
    assert set(classifier.select("all", freeze_head=True)) == everything - {"head.weight", "head.bias"}
    assert set(classifier.select(("conv.*", "head.bias"))) == {"conv.weight", "conv.bias", "head.bias"}
    assert set(classifier.select("none")) == set()
    assert not any(p.requires_grad for p in classifier.model.parameters())


def test_a_tied_head_is_frozen_under_every_name() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    model[0].weight = model[2].weight
    assert set(Classifier(model, X).select("all", freeze_head=True)) == {"0.bias", "1.weight", "1.bias"}


def test_impossible_policies_say_what_to_choose(net: Net) -> None:
    with pytest.raises(NotelaError, match="no normalisation layer.*trainable='body'"):
        Classifier(Wrapped("tensor"), X).select("norm")
    with pytest.raises(NotelaError, match=r"'layer4.\*' matches no parameter.*conv.weight"):
        Classifier(net, X).select("layer4.*")
    with pytest.raises(NotelaError, match="moves only the head"):
        Classifier(net, X).select("head.*", freeze_head=True)


def test_noise_is_on_while_norm_layers_stay_in_evaluation_mode(net: Net) -> None:
    classifier = Classifier(net, X)
    classifier.set_mode(noise=False, batch_statistics=False)
    clean = classifier(X)
    classifier.set_mode(noise=True, batch_statistics=False)
    noisy = classifier(X)
    torch.testing.assert_close(clean.logits, net(X))
    assert not torch.equal(noisy.logits, clean.logits)
    torch.testing.assert_close(classifier.model.bn.running_mean, net.bn.running_mean)
    assert not classifier.model.bn.training


def test_custom_norm_layers_stay_in_evaluation_mode_under_noise() -> None:
    class EvoNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight / (x.std() if self.training else 1)

    classifier = Classifier(nn.Sequential(EvoNorm(), nn.Linear(8, 3)), X)
    clean = classifier(X).logits
    classifier.set_mode(noise=True, batch_statistics=False)
    assert torch.equal(classifier(X).logits, clean)


def test_batch_statistics_with_and_without_recording(net: Net) -> None:
    classifier = Classifier(net, X)
    classifier.set_mode(noise=False, batch_statistics=True)
    quiet = classifier(X).logits
    assert torch.equal(classifier.model.bn.running_mean, net.bn.running_mean)
    assert classifier.model.bn.num_batches_tracked == net.bn.num_batches_tracked
    classifier.set_mode(noise=False, batch_statistics=True, update_statistics=True)
    torch.testing.assert_close(classifier(X).logits, quiet)
    assert not torch.equal(classifier.model.bn.running_mean, net.bn.running_mean)
    released = classifier.release()
    assert released.bn.track_running_stats
    assert not any(m.training for m in released.modules())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(1), nn.InstanceNorm1d(1, track_running_stats=True)])
def test_quiet_passes_leave_every_kind_of_running_average_alone(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Unflatten(1, (1, 8)), layer, nn.Flatten(), nn.Linear(8, 3))
    classifier = Classifier(model, X)
    before = weights(classifier.model)
    classifier.set_mode(noise=True, batch_statistics=True)
    classifier(X * 5 + 3)
    assert all(torch.equal(before[name], now) for name, now in weights(classifier.model).items())
    classifier.set_mode(noise=True, batch_statistics=True, update_statistics=True)
    classifier(X * 5 + 3)
    assert not torch.equal(before["1.running_mean"], classifier.model[1].running_mean)
    assert classifier.release()[1].momentum == 0.1


def test_a_cumulative_average_follows_during_the_run_and_is_given_back() -> None:
    layer = nn.BatchNorm1d(8, momentum=None)
    layer.num_batches_tracked += 100_000
    classifier = Classifier(nn.Sequential(layer, nn.Linear(8, 3)), X)
    classifier.set_mode(noise=False, batch_statistics=True, update_statistics=True)
    classifier(X)
    torch.testing.assert_close(classifier.model[0].running_mean, 0.1 * X.mean(0))
    assert classifier.release()[0].momentum is None


@pytest.mark.parametrize(
    ("layer", "noisy"),
    [
        (nn.Dropout(0.5), True),
        (nn.AlphaDropout(0.5), True),
        (nn.FeatureAlphaDropout(0.5), True),
        (DropPath(0.5), True),
        (DropPath(0.0), False),
        (nn.Dropout(0.0), False),
        (nn.Identity(), False),
    ],
)
def test_which_models_have_noise(layer: nn.Module, noisy: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 30), layer, nn.Linear(30, 3))
    assert Classifier(model, X).has_noise(X) is noisy


def test_dropout_called_as_a_function_counts_as_noise() -> None:
    assert Classifier(FunctionalDropout(), X).has_noise(X)


def test_added_dropout_acts_on_noisy_passes_only() -> None:
    classifier = Classifier(nn.Sequential(nn.Linear(8, 50), nn.Linear(50, 3)), X)
    classifier.add_dropout(0.5)
    classifier.set_mode(noise=False, batch_statistics=False)
    clean = classifier(X)
    assert torch.equal(clean.logits, classifier(X).logits)
    classifier.set_mode(noise=True, batch_statistics=False)
    noisy = classifier(X)
    assert torch.equal(noisy.features, clean.features), "the embedding is what comes before the dropout"
    assert not torch.equal(noisy.logits, clean.logits)


def test_release_restores_flags_and_removes_hooks(net: Net) -> None:
    net.conv.weight.requires_grad_(False)
    classifier = Classifier(net, X)
    classifier.select("all")
    classifier(X).logits.sum().backward()
    released = classifier.release()
    assert all(p.grad is None for p in released.parameters())
    assert not released.conv.weight.requires_grad
    assert released.head.weight.requires_grad
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in released.modules())


def test_double_precision_arrays_are_cast_to_the_models_type() -> None:
    assert Classifier(Wrapped("tensor"), X.double())(X.double()).logits.dtype == torch.float32
