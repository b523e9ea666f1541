"""Interference: bounded and monotone, exact trees, limits of every input, and abstention outside of the training."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.fingerprints.demand import QUANTILES, SHARED_RESOURCES
from gangline.fingerprints.interference import (
    FEATURES,
    GROUPS_MAX,
    MEMBERS_MAX,
    RISES,
    ColocatedWorkload,
    Colocation,
    InterferenceError,
    InterferenceModel,
    Slowdown,
    decode_model,
    encode_model,
    predict,
    predict_groups,
)
from gangline.fingerprints.interference_effects import Floats
from gangline.fingerprints.interference_pressure import (
    HOST,
    MIG,
    MPS,
    SEPARATE,
    SHARINGS,
    SLOWDOWN_MAX,
    TIME_SLICING,
    memory_blocker,
)
from gangline.fingerprints.interference_training import (
    COLOCATIONS_MIN,
    Measured,
    decode_measured,
    encode_measured,
    export_forest,
    fit_booster,
    fit_forest,
    train,
    train_in_child,
)
from gangline.fingerprints.interference_trees import DEPTH_MAX, ForestError, decode_forest

RESOURCES = len(SHARED_RESOURCES)
ONE_OF_EACH = np.ones(RESOURCES)
CORES, DISK, PCIE = (SHARED_RESOURCES.index(name) for name in ("cores", "disk", "pcie_received"))


def demand_of(**shares: float) -> Floats:
    """Return a demand that is constant over time; 0 for the resources that *shares* leaves out."""
    demand = np.zeros((RESOURCES, len(QUANTILES)))
    for name, share in shares.items():
        demand[SHARED_RESOURCES.index(name)] = share
    return demand


def measured_world(seed: int, pairs: int = 120) -> list[Measured]:
    """Return co-locations of 12 workloads on a host: physics of two resources, and a latent resource."""
    random = np.random.default_rng(seed)
    shares = random.uniform(0.1, 1.0, (12, 2))
    latent = random.uniform(0.0, 0.4, (12, 2))
    workloads = [
        ColocatedWorkload(f"w{at}", "host", float(1.0 + at), demand_of(cores=cores, disk=disk))
        for at, (cores, disk) in enumerate(shares)
    ]
    measured = []
    for _ in range(pairs):
        a, b = (int(at) for at in random.choice(12, 2, replace=False))
        physics = predict([workloads[a], workloads[b]], ONE_OF_EACH, HOST)
        ratios = [
            physics[0].ratio + latent[a, 0] * latent[b, 1] * 3, physics[1].ratio + latent[b, 0] * latent[a, 1] * 3,
        ]  # fmt: skip
        noisy = np.array(ratios) * np.exp(random.normal(0.0, 0.02, 2))
        measured.append(
            Measured(
                Colocation([workloads[a], workloads[b]], ONE_OF_EACH),
                (float(noisy[0]), float(noisy[1])), (f"family {a // 2}", f"family {b // 2}"),
            )
        )  # fmt: skip
    return measured


WORLD = measured_world(3)


@pytest.fixture(scope="module")
def model() -> InterferenceModel:
    return train(WORLD, HOST)


def test_a_stored_model_predicts_the_same(model: InterferenceModel) -> None:
    """A model goes through JSON to the process that serves it."""
    groups = [run.colocation for run in WORLD[:20]]
    assert predict_groups(groups, HOST, decode_model(encode_model(model))) == predict_groups(
        groups, HOST, model
    )


@pytest.mark.slow
def test_the_model_is_trained_in_a_child(model: InterferenceModel) -> None:
    """scikit-learn is imported by the child alone, and its model equals the model of this process."""
    assert encode_model(train_in_child(WORLD, HOST)) == encode_model(model)


def test_learned_slowdowns_are_better_than_physics(model: InterferenceModel) -> None:
    """The latent resource is learned: on new measurements of the same world physics has at least twice the error."""
    errors: dict[str, list[float]] = {"physics": [], "model": []}
    for run in measured_world(3, 240)[120:]:
        for name, used in (("physics", None), ("model", model)):
            for answer, true in zip(predict(*run.colocation, HOST, used), run.ratios, strict=True):
                errors[name].append(abs(true / answer.ratio - 1.0))
    assert np.mean(errors["model"]) < 0.5 * np.mean(errors["physics"])


def test_separate_hosts_do_not_slow_each_other(model: InterferenceModel) -> None:
    """Negative control: a factor of 1.00, whatever was learned."""
    for answer in predict(*WORLD[0].colocation, SEPARATE, model):
        assert answer == Slowdown(1.0, 1.0, 1.0, "", "separate hosts share nothing", "")


def test_a_workload_alone_is_not_slowed(model: InterferenceModel) -> None:
    """A host with a single workload has no neighbor: a residual of the trees must not slow it."""
    assert predict(WORLD[0].colocation.workloads[:1], ONE_OF_EACH, HOST, model)[0][:3] == (
        1.0,
        1.0,
        1.0,
    )


def test_an_infinite_supply_is_not_shared() -> None:
    """Two GPUs below different PCIe switches do not slow each other."""
    busy = ColocatedWorkload(demand=demand_of(pcie_received=20e9))
    supply = np.full(RESOURCES, 25e9)
    assert predict([busy, busy], supply, HOST)[0].binding == "pcie_received"
    supply[PCIE] = inf
    assert [answer.ratio for answer in predict([busy, busy], supply, HOST)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("sharing", "sm", "hbm", "ratio", "binding"),
    [
        (TIME_SLICING, 1.0, 0.9, 2.0, "sm"),
        (TIME_SLICING, 0.5, 0.9, 1.25, "sm"),
        (MPS, 0.5, 0.4, 1.0, ""),
        (MPS, 0.5, 0.9, 1.8, "hbm_bandwidth"),
        (MIG, 1.0, 1.0, 1.0, ""),
        (HOST, 1.0, 1.0, 1.0, ""),
    ],
)
def test_forms_of_sharing_divide_different_resources(sharing: str, sm: float, hbm: float, ratio: float, binding: str) -> None:  # fmt: skip
    """MIG isolates SMs and HBM; time slices never overlap, so they do not divide the HBM bandwidth."""
    workload = ColocatedWorkload(demand=demand_of(sm=sm, hbm_bandwidth=hbm))
    answer = predict([workload, workload], ONE_OF_EACH, sharing)[0]
    assert answer.ratio == pytest.approx(ratio)
    assert answer.binding == binding


@pytest.mark.parametrize(("first", "second"), [(0.8, 0.4), (0.2, 1.0)])
def test_rare_peaks_count_by_how_often_they_meet(first: float, second: float) -> None:
    """The mean of two bursty demands fits into the supply, and the bursts that meet do not."""
    bursty = np.zeros((RESOURCES, len(QUANTILES)))
    bursty[DISK] = (0.05, first, 1.0)
    steady = demand_of(disk=second)
    answer = predict(
        [ColocatedWorkload(demand=bursty), ColocatedWorkload(demand=steady)], ONE_OF_EACH, HOST
    )[0]
    assert 1.0 < answer.ratio < 1.0 + 0.275 * second


def test_memory_that_does_not_fit_is_a_blocker() -> None:
    """A workload without memory fails: a slowdown for it would be a wrong answer."""
    assert memory_blocker(np.array([30e9, 40e9, nan]), 80e9) == ""
    reason = memory_blocker(np.array([50e9, 40e9]), 80e9)
    assert "90.0 GB" in reason and "80.0 GB" in reason and "smaller batch" in reason


@settings(max_examples=60, deadline=None)
@given(data=st.data(), sharing=st.sampled_from(SHARINGS))
def test_more_pressure_never_helps_in_physics(data: st.DataObject, sharing: str) -> None:
    """Any demands and supplies: a neighbor that uses more, or a further neighbor, never lowers a slowdown."""
    numbers = st.one_of(st.floats(0.0, 3.0), st.just(nan))
    draw = st.lists(numbers, min_size=RESOURCES * 3, max_size=RESOURCES * 3)
    own, other, third = (np.array(data.draw(draw)).reshape(RESOURCES, 3) for _ in range(3))
    supply = np.array(
        data.draw(st.lists(st.floats(0.1, 5.0), min_size=RESOURCES, max_size=RESOURCES))
    )
    own[0] = np.nan_to_num(own[0])
    more = other * data.draw(st.floats(1.0, 3.0)) + data.draw(st.floats(0.0, 1.0))
    _check_rises(own, other, more, third, supply, sharing, None)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    keys=st.lists(st.sampled_from(["w0", "w3", "w7", "", "new"]), min_size=3, max_size=3),
)
def test_more_pressure_never_helps_with_a_trained_model(
    data: st.DataObject, keys: list[str], model: InterferenceModel
) -> None:
    """The boosted trees of the library broke this: their leaves are refitted to a quantile without the constraints."""
    draw = st.lists(st.floats(0.0, 3.0), min_size=RESOURCES * 3, max_size=RESOURCES * 3)
    own, other, third = (np.array(data.draw(draw)).reshape(RESOURCES, 3) for _ in range(3))
    supply = np.array(
        data.draw(st.lists(st.floats(0.1, 5.0), min_size=RESOURCES, max_size=RESOURCES))
    )
    more = other * data.draw(st.floats(1.0, 3.0)) + data.draw(st.floats(0.0, 1.0))
    unlimited = replace(model, pressure_max=np.full(RESOURCES, inf))
    _check_rises(own, other, more, third, supply, HOST, unlimited, keys)


def _check_rises(
    own: Floats, other: Floats, more: Floats, third: Floats, supply: Floats, sharing: str,
    model: InterferenceModel | None, keys: list[str] | None = None,
) -> None:  # fmt: skip
    names = keys or ["", "", ""]
    workloads = [
        ColocatedWorkload(name, "host", 2.0, demand)
        for name, demand in zip(names, (own, other, third), strict=True)
    ]
    first, second, extra = workloads
    busier = replace(second, demand=more)
    ratios = [
        predict(group, supply, sharing, model)[0]
        for group in ([first, second], [first, busier], [first, busier, extra])
    ]
    for before, after in pairwise(ratios):
        assert after.ratio >= before.ratio - 1e-12 and 1.0 <= after.ratio <= SLOWDOWN_MAX
        assert after.lower <= after.ratio <= after.upper
    assert ratios[1].upper >= ratios[0].upper - 1e-12


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.95])
def test_trees_equal_those_of_scikit_learn(quantile: float) -> None:
    """The exported arrays give the library's predictions within 1e-6, also for missing features."""
    random = np.random.default_rng(1)
    features = random.normal(0.0, 1.0, (600, len(FEATURES)))
    features[random.random(features.shape) < 0.2] = nan
    features[:, 8] = nan
    target = (
        np.nan_to_num(features[:, 0])
        - np.nan_to_num(features[:, 3]) ** 2
        + np.isnan(features[:, 2])
    )
    target += random.normal(0.0, 0.3, 600)
    booster = fit_booster(features, target, quantile)
    forest = export_forest(booster)
    new = random.normal(0.0, 2.0, (400, len(FEATURES)))
    new[random.random(new.shape) < 0.3] = nan
    assert np.abs(forest.predict(new) - booster.predict(new)).max() < 1e-6
    assert (
        decode_forest(forest.columns(), len(FEATURES)).predict(new) == forest.predict(new)
    ).all()


def test_trees_rise_where_they_must() -> None:
    """A target that falls with pressure is noise to the constrained trees."""
    random = np.random.default_rng(2)
    features = random.uniform(0.0, 1.0, (800, len(FEATURES)))
    target = features[:, 3] - features[:, 0] + random.normal(0.0, 0.5, 800)
    forest = fit_forest(features, target, 0.95)
    for column in np.flatnonzero(RISES):
        higher = features.copy()
        higher[:, column] += random.uniform(0.0, 1.0, 800)
        assert (forest.predict(higher) >= forest.predict(features) - 1e-12).all()


@pytest.mark.slow
def test_shuffled_slowdowns_give_no_gain() -> None:
    """Negative control: with shuffled labels, the model predicts other pairs as badly as the mean."""
    random = np.random.default_rng(5)
    pool = [replace_demand(run) for run in measured_world(5, 160)]
    ratios = random.permutation([ratio for run in pool for ratio in run.ratios])
    shuffled = [
        run._replace(ratios=(float(ratios[2 * at]), float(ratios[2 * at + 1])))
        for at, run in enumerate(pool)
    ]
    trained = train(shuffled[:120], HOST)
    answers = predict_groups([run.colocation for run in shuffled[120:]], HOST, trained)
    predicted = np.array([answer.ratio for group in answers for answer in group])
    true = np.array([run.ratios for run in shuffled[120:]]).ravel()
    mean = np.exp(np.log(ratios[:240]).mean())
    assert np.abs(true / predicted - 1.0).mean() > 0.97 * np.abs(true / mean - 1.0).mean()


def replace_demand(run: Measured) -> Measured:
    """Return *run* without demands, so that nothing but labels can be learned."""
    workloads = [
        ColocatedWorkload(w.key, w.context, w.pace_seconds) for w in run.colocation.workloads
    ]
    return run._replace(colocation=Colocation(workloads, run.colocation.supply))


def test_outside_of_the_training_it_abstains_and_names_the_resource(
    model: InterferenceModel,
) -> None:
    """The training had pressure on cores and disk: a prediction for PCIe would be a guess."""
    known = WORLD[0].colocation.workloads[0]
    busy = replace(known, demand=demand_of(pcie_received=0.9))
    for answer in predict([busy, busy], ONE_OF_EACH, HOST, model):
        assert "pcie_received" in answer.abstained and isnan(answer.ratio)


@pytest.mark.parametrize("learned", [False, True])
def test_an_unknown_supply_or_workload_is_named(learned: bool, model: InterferenceModel) -> None:
    """A missing supply once looked free, and a workload without any fact got a slowdown of 1.00."""
    used = model if learned else None
    disk = ColocatedWorkload("w1", "host", demand=demand_of(disk=1e9))
    assert "disk" in predict([disk, disk], np.full(RESOURCES, nan), HOST, used)[0].abstained
    assert "unknown" in predict([ColocatedWorkload(), disk], ONE_OF_EACH, HOST, None)[0].abstained
    assert predict([ColocatedWorkload(), disk], ONE_OF_EACH, HOST, model)[0].abstained.startswith(
        "neither"
    )


@pytest.mark.parametrize(
    ("groups", "sharing", "message"),
    [
        ([Colocation([ColocatedWorkload()], ONE_OF_EACH)] * (GROUPS_MAX + 1), HOST, "at most 64"),
        (
            [Colocation([ColocatedWorkload()] * (MEMBERS_MAX + 1), ONE_OF_EACH)],
            HOST,
            "expected 1 to 16",
        ),
        ([Colocation([], ONE_OF_EACH)], HOST, "expected 1 to 16"),
        ([Colocation([ColocatedWorkload()], np.ones(3))], HOST, "expected (11,)"),
        (
            [Colocation([ColocatedWorkload("a", demand=np.ones(11))], ONE_OF_EACH)],
            HOST,
            "expected (11, 3)",
        ),
        ([Colocation([ColocatedWorkload()], ONE_OF_EACH)], "vgpu", "expected one of time_slicing"),
        ([Colocation([ColocatedWorkload()], ONE_OF_EACH)], MPS, "learned under host"),
    ],
)
def test_a_wrong_request_is_named(
    groups: list[Colocation], sharing: str, message: str, model: InterferenceModel
) -> None:
    """Each limit of a request has an error that gives the correct form."""
    with pytest.raises(InterferenceError) as raised:
        predict_groups(groups, sharing, model)
    assert message in str(raised.value)


def test_odd_numbers_never_raise(model: InterferenceModel) -> None:
    """A driver reported negative and infinite rates: a slowdown stays between 1 and its limit, or it abstains."""
    odd = np.full((RESOURCES, len(QUANTILES)), -inf)
    odd[:4, 0], odd[4:8] = inf, nan
    for used in (None, model):
        for answer in predict(
            [ColocatedWorkload("w1", "elsewhere", -1.0, odd), ColocatedWorkload("w2", demand=-odd)],
            ONE_OF_EACH * 0.0,
            HOST,
            used,
        ):
            assert (
                answer.abstained
                or 1.0 <= answer.lower <= answer.ratio <= answer.upper <= SLOWDOWN_MAX
            )


def test_wrong_co_locations_are_named() -> None:
    """A wrong table of co-locations must not become a model."""
    run = WORLD[0]
    nameless = Colocation([ColocatedWorkload(), ColocatedWorkload()], ONE_OF_EACH)
    three = Colocation([*run.colocation.workloads, ColocatedWorkload("w3")], ONE_OF_EACH)
    for measured, message in (
        (WORLD[: COLOCATIONS_MIN - 1], "expected 8 to 20000"),
        ([run._replace(ratios=(0.0, 1.0))] * 9, "expected numbers above 0"),
        ([run._replace(colocation=nameless)] * 9, "without a key"),
        ([run] * 9, "expected 5 or more different pairs"),
        ([run._replace(colocation=three)] * 9, "the training takes pairs"),
    ):
        with pytest.raises(InterferenceError) as raised:
            train(measured, HOST)
        assert message in str(raised.value)
    with pytest.raises(InterferenceError, match="nothing is learned"):
        train(WORLD, SEPARATE)
    with pytest.raises(InterferenceError, match="the training failed: 7 co-locations"):
        train_in_child(WORLD[:7], HOST)
    with pytest.raises(InterferenceError, match="use encode_measured"):
        decode_measured('{"runs": [{"workloads": 3}]}')
    assert decode_measured(encode_measured(WORLD[:1], HOST))[0][0].ratios == WORLD[0].ratios


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 99, "version 99"),
        (("effects",), {}, "not a model of interference"),
        (("widening",), [0.0], "differ in length"),
        (("limits", 0, "feature"), [99], "differ in length"),
        (("limits", 0, "depth"), DEPTH_MAX + 1, "at most"),
        (("limits", 1, "left", 0), 10**6, "outside of 0 to"),
        (("limits", 1, "feature", 0), -1, "outside of 0 to"),
        (("limits", 1, "value", 0), nan, "finite"),
        (("limits", 1, "baseline"), "x", "not a forest"),
    ],
)
def test_a_damaged_model_is_named(
    path: tuple[str | int, ...], value: object, message: str, model: InterferenceModel
) -> None:
    """A truncated file must not read outside of its arrays."""
    stored = json.loads(encode_model(model))
    part = stored
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(InterferenceError) as raised:
        decode_model(json.dumps(stored))
    assert message in str(raised.value)
    with pytest.raises(ForestError):
        decode_forest({}, 1)
