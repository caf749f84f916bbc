"""The papers' models have the layers and the parameters that they should; their losses are the papers' formulas."""

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.config.named_tasks import lenet
from paceline.core.errors import ConfigError
from paceline.data.samples import TensorSamples
from paceline.learning.loss import Loss, SampleLoss
from reproductions.models.convolutional import Norm, nin, vgg11
from reproductions.models.linear import LinearClassifier, Scored, correct, logistic, odd, odd_sign, smooth_svm


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def kinds(model: nn.Sequential) -> list[str]:
    return [type(module).__name__ for module in model]


def weights(model: LinearClassifier) -> Tensor:
    return model.linear.weight.detach()[0]


def test_the_linear_model_has_one_weight_a_pixel_and_starts_at_zero() -> None:
    model = LinearClassifier()
    assert parameters(model) == 784
    assert [tuple(each.shape) for each in model.parameters()] == [(1, 784)]
    assert torch.count_nonzero(weights(model)) == 0
    assert torch.equal(model(torch.rand(3, 28, 28)), torch.zeros(3))


def test_lenet_has_62006_parameters() -> None:
    convolutions = (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16
    connected = (16 * 5 * 5 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10
    assert parameters(lenet()) == convolutions + connected == 62_006
    assert lenet()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_dropout_in_lenet_is_optional_and_has_no_parameters() -> None:
    assert "Dropout" not in kinds(lenet())
    dropping = lenet(dropout=0.5)
    assert kinds(dropping)[7:] == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    assert parameters(dropping) == 62_006
    assert dropping(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(("width", "count"), [(1, 966_986), (1 / 8, 17_058)])
def test_nin_has_nine_convolutions_and_its_parameters(width: float, count: int) -> None:
    wide, middle, narrow = (round(channels * width) for channels in (192, 160, 96))
    layers = [(3, wide, 5), (wide, middle, 1), (middle, narrow, 1), (narrow, wide, 5), (wide, wide, 1), (wide, wide, 1)]
    layers += [(wide, wide, 3), (wide, wide, 1), (wide, 10, 1)]
    by_hand = sum((before * size**2 + 1) * after for before, after, size in layers)
    model = nin(width)
    convolutions = [module for module in model if isinstance(module, nn.Conv2d)]
    assert [(each.in_channels, each.out_channels, each.kernel_size[0]) for each in convolutions] == layers
    assert parameters(model) == by_hand == count
    assert kinds(model).count("Dropout") == 2
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_weights_of_nin_are_drawn_anew_as_they_were_at_first() -> None:
    """7,200 weights: their standard deviation is known to 1 %."""
    torch.manual_seed(0)
    convolution = nin(1 / 8)[8]
    assert isinstance(convolution, nn.Conv2d)
    first = convolution.weight.detach().clone()
    convolution.reset_parameters()
    again = convolution.weight.detach()
    assert not torch.equal(first, again)
    for weight in (first, again):
        assert weight.std().item() == pytest.approx((2 / (12 * 25)) ** 0.5, rel=0.05)


def test_an_impossible_nin_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"width=0.001"):
        nin(0.001)
    with pytest.raises(ConfigError, match=r"dropout=1.0"):
        nin(dropout=1.0)


FULL = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]


@pytest.mark.parametrize(
    ("width", "norm", "count"),
    [
        (1, "none", 9_225_610),
        (1, "group", 9_231_114),
        (1, "batch", 9_231_114),
        (0.125, "none", 145_210),
        (0.125, "group", 145_898),
        (0.125, "batch", 145_898),
    ],
)
def test_vgg11_has_its_parameters(width: float, norm: Norm, count: int) -> None:
    narrow = [(round(before * width) if before > 3 else 3, round(after * width)) for before, after in FULL]
    by_hand = sum((9 * before + 1) * after for before, after in narrow) + (narrow[-1][1] + 1) * 10
    if norm != "none":
        by_hand += sum(2 * after for _, after in narrow)
    assert parameters(vgg11(width, norm)) == by_hand == count


@pytest.mark.parametrize(("norm", "kind"), [("group", "GroupNorm"), ("batch", "BatchNorm2d"), ("none", None)])
def test_vgg11_has_eight_convolutions_and_one_connected_layer(norm: Norm, kind: str | None) -> None:
    model = vgg11(1 / 8, norm)
    block = ["Conv2d", *([kind] if kind else []), "ReLU"]
    pooled = ["MaxPool2d"]
    one, two = block + pooled, block + block + pooled
    assert kinds(model) == one + one + two + two + two + ["Flatten", "Linear"]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("width", [1 / 64, 0.1, 0.3])
def test_vgg11_has_groups_at_any_width(width: float) -> None:
    norms = [module for module in vgg11(width) if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 8
    assert {norm.num_channels % norm.num_groups for norm in norms} == {0}


@pytest.mark.parametrize("width", [1 / 8, 1 / 2])
def test_vgg11_has_as_many_channels_in_a_group_at_any_width(width: float) -> None:
    norms = [module for module in vgg11(width) if isinstance(module, nn.GroupNorm)]
    assert [norm.num_channels // norm.num_groups for norm in norms] == [after // 32 for _, after in FULL]


def test_models_are_drawn_by_the_seed() -> None:
    def drawn(seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.utils.parameters_to_vector(vgg11(1 / 16).parameters()).detach()

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_a_signal_passes_through_all_layers_without_a_norm() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, pictures = vgg11(1 / 4, "none"), torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        last = model[:-1](pictures)
    assert 0.1 < float(last.std()) < 10


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: vgg11(norm="layer"), "norm='layer' is unknown"),  # type: ignore[arg-type]
        (lambda: vgg11(width=0.01), "width=0.01 is not possible"),
        (lambda: vgg11(width=float("nan")), "width=nan is not possible"),
        (lambda: vgg11(classes=0), "0 classes are not possible"),
        (lambda: lenet(dropout=1.0), "dropout=1.0 is not possible"),
        (lambda: lenet(classes=0), "0 classes are not possible"),
        (lambda: LinearClassifier(penalty=-1.0), "penalty=-1.0 is not possible"),
        (lambda: LinearClassifier(0), "0 inputs is not possible"),
    ],
)
def test_impossible_models_are_refused(wrong: type[nn.Module], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        wrong()


# The losses: Group SGD, Table 1


def problem(penalty: float = 0.0, samples: int = 12) -> tuple[LinearClassifier, Tensor, Tensor]:
    """A model that is not at zero, inputs and digits."""
    generator = torch.Generator().manual_seed(0)
    model = LinearClassifier(5, penalty).double()
    model.linear.weight.data.normal_(generator=generator)
    inputs = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    return model, inputs, torch.randint(10, (samples,), generator=generator)


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_the_smooth_svm_is_its_formula_and_has_its_gradient(penalty: float) -> None:
    model, x, digits = problem(penalty)
    y, w = odd_sign(digits).double(), weights(model)
    each = smooth_svm(model(x), y)
    hinge = (1 - y * (x @ w)).clamp(min=0)
    assert torch.allclose(each, penalty / 2 * w.dot(w) + hinge**2 / 2)
    each.mean().backward()  # type: ignore[no-untyped-call]
    assert model.linear.weight.grad is not None
    assert torch.allclose(model.linear.weight.grad[0], penalty * w - (y * hinge) @ x / len(x))


@pytest.mark.parametrize("penalty", [0.0, 0.001])
def test_the_logistic_loss_is_its_formula_and_has_its_gradient(penalty: float) -> None:
    model, x, digits = problem(penalty)
    y, w = odd(digits).double(), weights(model)
    each = logistic(model(x), y)
    z = x @ w
    assert torch.allclose(each, penalty / 2 * w.dot(w) + (1 + z.exp()).log() - y * z)
    each.mean().backward()  # type: ignore[no-untyped-call]
    assert model.linear.weight.grad is not None
    assert torch.allclose(model.linear.weight.grad[0], penalty * w + (z.sigmoid() - y) @ x / len(x))


def test_the_logistic_loss_does_not_overflow() -> None:
    assert logistic(torch.tensor([1000.0, -1000.0]), torch.tensor([0.0, 0.0])).tolist() == [1000.0, 0.0]


@pytest.mark.parametrize("loss", [logistic, smooth_svm])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_losses_are_of_single_samples_so_that_passes_can_be_fused(loss: Loss, penalty: float) -> None:
    model, x, digits = problem(penalty)
    targets = (odd if loss is logistic else odd_sign)(digits).double()
    found = SampleLoss(loss, TensorSamples(x, targets)).losses(model, (x, targets), 12)
    assert found.each is not None
    assert found.each.shape == (12,)
    assert torch.equal(found.mean(), found.each.mean())


def test_a_column_of_scores_does_too() -> None:
    targets = torch.tensor([1.0, 0.0, 1.0])
    scores = torch.tensor([0.5, -0.5, -2.0])
    assert torch.equal(logistic(scores[:, None], targets), logistic(scores, targets))
    assert torch.equal(smooth_svm(scores[:, None], targets), smooth_svm(scores, targets))


def test_the_sign_tells_odd_from_even() -> None:
    digits = torch.tensor([0, 1, 2, 7])
    assert odd(digits).tolist() == [0.0, 1.0, 0.0, 1.0]
    assert odd_sign(digits).tolist() == [-1.0, 1.0, -1.0, 1.0]
    scores = Scored(torch.tensor([-1.0, 2.0, 0.5, -3.0]), torch.tensor(9.0))
    for targets in (odd(digits), odd_sign(digits)):
        assert correct(scores, targets).tolist() == [True, True, False, False]


def trained(strategy: pl.strategy.Strategy, *, penalty: float, decay: float, fused: bool = True) -> Tensor:
    """The weights after 30 updates of three workers of unequal speed."""
    model, x, digits = problem(penalty, samples=64)
    run = pl.train(
        pl.Task(model=model, loss=smooth_svm, train=(x, odd_sign(digits).double())),
        strategy=strategy,
        fleet=pl.SimulatedFleet(
            [pl.delays.Constant(1.0), pl.delays.Constant(2.0), pl.delays.Constant(3.0)],
            evaluation="fused" if fused else "exact",
        ),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=decay),
        stop=pl.Stop(updates=30),
        batch_size=4,
        progress=False,
    )
    return nn.utils.parameters_to_vector(run.model.parameters()).detach()


def test_penalty_and_weight_decay_are_the_same_for_synchronous_rules_only() -> None:
    penalised, decayed = (trained(pl.Synchronous(), penalty=lam, decay=0.1 - lam) for lam in (0.1, 0.0))
    assert torch.allclose(penalised, decayed, rtol=1e-12)
    penalised, decayed = (trained(pl.Asynchronous(), penalty=lam, decay=0.1 - lam) for lam in (0.1, 0.0))
    assert torch.allclose(penalised, decayed, atol=0.05)
    assert not torch.allclose(penalised, decayed, rtol=1e-6)


def test_fused_passes_give_what_single_ones_give() -> None:
    fused, single = (trained(pl.Synchronous(), penalty=0.1, decay=0.0, fused=each) for each in (True, False))
    assert torch.allclose(fused, single, rtol=1e-12)
