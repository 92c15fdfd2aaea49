"""Models of every family in bf16 are as near to the truth as transformers' own: both round as often.

The truth is transformers' model in fp64, with the same weights, which are numbers of bf16. What either model is apart from
it are the roundings of bf16 between the embedding and the logits (2^-8 of a number each, some dozens of them in sequence,
which layers may amplify, GatedDeltaNet by ten), whose signs do not depend on each other. So there is no bound that is both
sharp and good for all families, but the errors of two models that round as often are equal, to the accuracy with which some
dozens of them tell their size: a quartile of the errors of 97 tokens, each of which has a spread of a half of itself, is
known to 0.5 * 1.4 / sqrt(97) = 7 %, the quotient of two to 10 %, and tokens of a document are not independent. APART is five
times that. Quartiles, since a rounding may send a token to another expert, whatever computes it."""

import copy

import pytest
import torch
from families import families_of_the_program
from model_configs import CONFIGS
from test_models import by_file_name, make_model, make_row, parts_of_fused, probe, reference_logits, relative_error

APART = 1.5
DOCUMENTS = [40, 1, 23, 33]
# The first model of each family.
FAMILIES = {config.model_type: name for name, config in reversed(CONFIGS.items())}


def every_expert_is_chosen(config):
    """Then nothing is decided by a rounding."""
    config = copy.deepcopy(config)
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if getattr(config, key, None):
            config.num_experts_per_tok = getattr(config, key)
    if hasattr(config, "n_group"):
        config.n_group = config.topk_group = 1
    return config


CHOICES = [(family, chosen) for family, name in FAMILIES.items() for chosen in ("every", "some")
           if chosen == "every" or CONFIGS[name].to_dict() != every_expert_is_chosen(CONFIGS[name]).to_dict()]


def results_of(model, tokens, labels):
    """Logits, and gradients by the names in the files."""
    logits = reference_logits(model, tokens, DOCUMENTS)
    torch.nn.functional.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels).backward()
    return logits.detach(), by_file_name({name: p.grad for name, p in model.named_parameters()})


def quartiles_apart(ours, theirs, exact):
    """Of tokens' relative errors: how many times ours are as large."""
    def errors(logits):
        return (logits.double() - exact).norm(dim=-1) / exact.norm(dim=-1)

    parts = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return (errors(ours).quantile(parts) / errors(theirs).quantile(parts)).tolist()


def test_every_family_is_here():
    assert set(FAMILIES) == set(families_of_the_program())


@pytest.mark.parametrize("family, chosen", CHOICES)
def test_as_near_as_transformers(family, chosen, tmp_path):
    config = CONFIGS[FAMILIES[family]]
    if chosen == "every":
        config = every_expert_is_chosen(config)
    torch.set_num_threads(1)
    in_bf16 = make_model(config, torch.bfloat16)
    in_bf16.save_pretrained(tmp_path / "model")
    exact = make_model(config, torch.bfloat16).to(torch.float64)
    if hasattr(config, "num_experts_per_tok"):
        exact.set_experts_implementation("eager")  # grouped products know no fp64
    tokens, labels = make_row(config.vocab_size, DOCUMENTS)
    results = probe(tmp_path / "model", tmp_path, tokens, labels, DOCUMENTS, ["logits", "gradients"],
                    parameter_dtype="bfloat16", compute_dtype="bfloat16")
    (logits, gradients), (their_logits, their_gradients) = [results_of(model, tokens, labels) for model in (exact, in_bf16)]
    assert torch.isfinite(results["logits"]).all()
    assert 0 < max(quartiles_apart(results["logits"], their_logits, logits)) < APART
    if chosen == "some":
        return
    gradients, their_gradients = [parts_of_fused(parts, results) for parts in (gradients, their_gradients)]
    assert gradients.keys() == {name.removeprefix("gradient.") for name in results if name.startswith("gradient.")}
    apart = []
    for name, gradient in gradients.items():
        own = results["gradient." + name]
        if gradient.norm() > 1e-6 and gradient.numel() >= 64:  # few numbers tell nothing, and key biases have no gradient
            assert torch.cosine_similarity(own.double().flatten(), gradient.flatten(), dim=0) > 0.5, name
            apart.append(relative_error(own, gradient) / relative_error(their_gradients[name], gradient))
    assert 0 < torch.tensor(apart).median().item() < APART
