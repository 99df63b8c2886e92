"""The learners of distillation on a tiny model: exact teachers, chunks that change nothing, saved
state that continues to the bit.
"""

import asyncio

import pytest
import torch

from recipes.distillation.knobs import DistillationKnobs
from recipes.sdft.knobs import Knobs as SDFTKnobs
from recipes.sdft.recipe import SDFTRecipe
from recipes.sdpo.knobs import Knobs as SDPOKnobs
from recipes.sdpo.recipe import SDPORecipe
from recipes.sft.knobs import Knobs as SFTKnobs
from recipes.sft.recipe import SFTRecipe
from reefcommon.errors import BadConfig, Poison
from reefcommon.ids import LoadId
from reefcommon.metrics import DISTILLATION_METRICS
from reefcommon.recipe_loading import load_recipe
from tests.recipes.bandit import ALL_LINEAR, START, write_model
from tests.recipes.guided import HINT, SKILL_A, TEMPLATE, ids, play, signalled, write_tokenizer
from tests.recipes.samples import sample

pytestmark = pytest.mark.engine

ADAPTER = {"policy_lr": 1e-2, "target_modules": ALL_LINEAR}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("codes"))
    write_tokenizer(path)
    return path


def sdpo(**knobs):
    mine = {"batch_size": 8, "group_size": 4, "success_threshold": -1.0, "top_k": 5}
    return SDPORecipe(SDPOKnobs(**ADAPTER, **(mine | {"template": TEMPLATE} | knobs)))


def batch(learner, seed=0, letters="aaaabbbb"):
    draw = torch.Generator().manual_seed(seed)
    return play(learner.policy.model, SKILL_A, letters, seed, draw)


def weights(learner):
    return {name: tensor.clone() for name, tensor in learner.policy.adapter().items()}


def same(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def moved(learner):
    """An adapter that does something."""
    for tensor in learner.policy.adapter().values():
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel()))
        tensor.add_(0.05 * noise)
    return learner


def probabilities(model, prompt, response, temperature=1.0):
    logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    return torch.log_softmax(logits / temperature, -1)[len(prompt) - 1 : -1]


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd", "sampled_reverse_kl"])
@pytest.mark.parametrize("top_k", [0, 4])
def test_chunks_give_the_divergence_and_gradient_of_the_whole(model_path, kind, top_k):
    """Prompts of several lengths, a masked token and a temperature, against plain forwards."""
    from recipes.distillation.comparison import compare, kept_ids
    from recipes.distillation.divergences import divergence, restrict, sampled_reverse_kl
    from recipes.distillation.lessons import TeacherContext, lesson
    from recipes.distillation.placement import at_trained

    one = moved(sdpo().learner(model_path))
    units = [
        sample(0, tokens=(START, 11, 3, 4, 5), loss_mask=(1, 0, 1), temperature=0.7),
        sample(1, tokens=(START, 12, 7, 8), loss_mask=(1, 1), logprobs=(-1.0, -1.0)),
    ]
    hints = [TeacherContext(({"role": "user", "content": words},)) for words in ("b[34", "c[789")]
    found = []
    for chunk in (1, 2, 512):
        knobs = DistillationKnobs(divergence=kind, top_k=top_k, chunk_positions=chunk)
        pairs = zip(units, hints, strict=True)
        group = [lesson(unit, hint, knobs, one.tokens.prompt) for unit, hint in pairs]
        padded = one.policy.pad([each.student for each in group])
        hidden = one.policy.hidden(padded)
        teacher = one.teacher.hidden([each.teacher for each in group])[padded.mask_BR.bool()]
        at = at_trained(padded, hidden)
        compared = compare(at, teacher, one.policy.logits, one.teacher.logits, knobs)
        compared.divergence_N.sum().backward()
        found.append((compared, gradient(one)))

    rows = []
    for unit, hint in zip(units, ("b[34", "c[789"), strict=True):
        response, prompt = unit.tokens[2:], unit.tokens[:2]
        p = probabilities(one.policy.model, prompt, response, unit.temperature)
        with torch.no_grad():
            t = probabilities(one.teacher.causal, (START, *ids(hint)), response, unit.temperature)
        keep = torch.tensor(unit.loss_mask).bool()
        p, t, token = p[keep], t[keep], torch.tensor(response)[keep][:, None]
        if kind == "sampled_reverse_kl":
            rows.append(sampled_reverse_kl(p.gather(1, token)[:, 0], t.gather(1, token)[:, 0]))
            continue
        if top_k:
            kept = kept_ids(p, top_k)
            p, t = restrict(p, kept, "tail"), restrict(t, kept, "tail")
        rows.append(divergence(p, t, kind))
    whole = torch.cat(rows)
    whole.sum().backward()
    expected = gradient(one)
    for compared, grad in found:
        assert torch.allclose(compared.divergence_N, whole, atol=1e-5)
        assert max(float((g - e).abs().max()) for g, e in zip(grad, expected, strict=True)) < 1e-4


def gradient(learner):
    parameters = [p for p in learner.policy.model.parameters() if p.requires_grad]
    grads = [p.grad.clone() for p in parameters]
    for p in parameters:
        p.grad = None
    return grads


def test_micro_batches_give_the_same_step(model_path):
    whole, parts = (
        sdpo(micro_batch_tokens=size, chunk_positions=chunk).learner(model_path)
        for size, chunk in ((4096, 512), (12, 1))
    )
    units = batch(whole)
    whole.step(units)
    parts.step(units)
    for name, tensor in weights(whole).items():
        assert torch.allclose(tensor, weights(parts)[name], atol=2e-5), name


def test_the_base_model_stays_and_shares_its_weights(model_path):
    from transformers import LlamaForCausalLM

    one = sdpo(average_rate=0.0).learner(model_path)
    plain = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    for seed in range(3):
        one.step(batch(one, seed))
    prompt, response = (START, 10), (3, 7)
    with torch.no_grad():
        theirs = probabilities(one.teacher.causal, prompt, response)
        assert torch.equal(theirs, probabilities(plain, prompt, response))
        assert not torch.equal(theirs, probabilities(one.policy.model, prompt, response))
    embedded = one.teacher.causal.model.embed_tokens.weight
    assert embedded.data_ptr() == one.policy.causal.model.embed_tokens.weight.data_ptr()


def test_the_average_is_exact_and_is_what_the_teacher_reads(model_path):
    one = sdpo(average_rate=0.25).learner(model_path)
    expected = weights(one)
    for seed in range(4):
        one.step(batch(one, seed))
        mine = weights(one)
        expected = {k: v + 0.25 * (mine[k] - v) for k, v in expected.items()}
    assert not same(expected, weights(one))
    hidden = one.teacher.causal
    other = sdpo().learner(model_path)
    for name, tensor in other.policy.adapter().items():
        tensor.copy_(expected[name])
    with torch.no_grad():
        theirs = probabilities(hidden, (START, 10), (3, 7))
        ours = probabilities(other.policy.model, (START, 10), (3, 7))
    assert torch.allclose(theirs, ours, atol=1e-6)


def test_a_saved_state_continues_to_the_bit(model_path, tmp_path):
    first = sdpo(average_rate=0.1).learner(model_path)
    for seed in range(3):
        first.step(batch(first, seed))
    first.save(tmp_path)
    resumed = sdpo(average_rate=0.1, seed=99).learner(model_path)
    resumed.load(tmp_path)
    for seed in range(3, 6):
        units = batch(first, seed)
        assert first.step(units) == resumed.step(units)
    assert same(weights(first), weights(resumed))


def test_a_rejected_actor_takes_its_average_with_it(model_path, tmp_path):
    one = sdpo(average_rate=0.5).learner(model_path)
    for name, seed in (("head", 0), ("rejected", 1)):
        one.step(batch(one, seed))
        (tmp_path / name).mkdir()
        one.save(tmp_path / name)
    back = sdpo(average_rate=0.5).learner(model_path)
    back.load(tmp_path / "rejected", actor_from=tmp_path / "head")
    back.save(tmp_path)
    assert back.steps == 2
    for name in ("teacher.safetensors", "adapter_model.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "head" / name).read_bytes()


def test_an_adopted_adapter_is_where_the_average_begins(model_path, tmp_path):
    one = sdpo(average_rate=0.5).learner(model_path)
    one.step(batch(one))
    one.export(tmp_path / "published")
    fresh = sdpo(average_rate=0.5).learner(model_path)
    fresh.adopt(tmp_path / "published")
    fresh.save(tmp_path)
    mine = (tmp_path / "published" / "adapter_model.safetensors").read_bytes()
    assert (tmp_path / "teacher.safetensors").read_bytes() == mine


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_a_teacher_of_another_rank_reads_as_peft_does(model_path, tmp_path):
    import peft
    from transformers import LlamaForCausalLM

    taught = moved(sdpo(lora_r=3, lora_alpha=5).learner(model_path))
    taught.export(tmp_path)
    recipe = load_recipe("recipes.opd.recipe:OPDRecipe", {"teacher": str(tmp_path), **ADAPTER})
    one = recipe.learner(model_path)
    plain = peft.PeftModel.from_pretrained(
        LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32), tmp_path
    )
    before = weights(one)
    with torch.no_grad():
        theirs = probabilities(one.teacher.causal, (START, 10), (3, 7))
        assert torch.allclose(theirs, probabilities(plain, (START, 10), (3, 7)), atol=1e-5)
    metrics = one.step(batch(one)).metrics
    assert sorted(metrics) == sorted(DISTILLATION_METRICS)
    assert not same(before, weights(one))


def test_a_whole_model_teaches_if_it_has_the_same_tokens(model_path, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    recipe = load_recipe("recipes.opd.recipe:OPDRecipe", {"teacher": str(model_path), **ADAPTER})
    one = recipe.learner(model_path)
    gap = one.step(batch(one)).metrics["distill/teacher_gap"]
    assert gap == pytest.approx(0.0, abs=1e-5)
    small = LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    other = load_recipe("recipes.opd.recipe:OPDRecipe", {"teacher": str(tmp_path)})
    with pytest.raises(Poison, match="9 tokens, the policy 27"):
        other.learner(model_path)


def test_a_teacher_that_is_not_there_is_said_at_the_start(tmp_path):
    with pytest.raises(BadConfig, match=r"reef\.teacher.*holds neither"):
        load_recipe("recipes.opd.recipe:OPDRecipe", {"teacher": str(tmp_path)})
    with pytest.raises(BadConfig, match=r"reef\.max_staleness"):
        load_recipe("recipes.opd.recipe:OPDRecipe", {"teacher": "x", "max_staleness": 3})


def test_a_batch_without_a_lesson_changes_nothing(model_path):
    """No right sibling anywhere, or no token left after those that are skipped."""
    nothing_right = sdpo(success_threshold=2.0).learner(model_path)
    before = weights(nothing_right)
    result = nothing_right.step(batch(nothing_right))
    assert (result.action, result.step) == ("skip", 0)
    assert result.metrics["distill/unguided_units"] == 8
    assert same(before, weights(nothing_right))
    all_skipped = sdpo(skip_tokens=2).learner(model_path)
    assert all_skipped.step(batch(all_skipped)).action == "skip"


def test_a_unit_without_a_sibling_stays_in_the_mean(model_path):
    """Four attempts with siblings, and the same beside four without: half the loss."""
    one = sdpo(success_threshold=0.5).learner(model_path)
    units = [
        u.model_copy(update={"score": float(u.messages[0]["content"] == "a")}) for u in batch(one)
    ]
    both = one.step(units).metrics
    alone = sdpo(success_threshold=0.5).learner(model_path).step(units[:4]).metrics
    assert both["distill/loss"] == pytest.approx(alone["distill/loss"] / 2)
    assert (both["distill/trained_units"], both["distill/unguided_units"]) == (4, 4)


def test_a_teacher_sequence_that_is_too_long_is_skipped_and_counted(model_path):
    one = sdpo(max_teacher_tokens=6).learner(model_path)
    result = one.step(batch(one))
    assert (result.action, result.metrics["distill/too_long"]) == ("skip", 8)
    fits = sdpo(max_teacher_tokens=7).learner(model_path)
    assert fits.step(batch(fits)).metrics["distill/too_long"] == 0


def test_the_gradient_reaches_sampled_tokens_only(model_path):
    """What the environment's tokens are said to be worth changes nothing."""
    steps = []
    for noise in (0.0, -3.0):
        one = sdpo().learner(model_path)
        units = [
            u.model_copy(
                update={
                    "tokens": (*u.tokens, 20, 21, 5),
                    "loss_mask": (1, 1, 0, 0, 1),
                    "logprobs": (*u.logprobs, noise, noise, -3.3),
                }
            )
            for u in batch(one)
        ]
        assert one.step(units).metrics["distill/trained_tokens"] == 24
        steps.append(weights(one))
    assert same(*steps)


def test_the_teachers_prompt_is_that_of_the_template(model_path):
    recipe = SDFTRecipe(SDFTKnobs(template=TEMPLATE, skip_tokens=0, batch_size=8, **ADAPTER))
    one = recipe.learner(model_path)
    units = [signalled(recipe, unit) for unit in batch(one)]
    (read,) = one.contexts(units[:1])
    assert one.tokens.prompt(read.messages) == (START, *ids("a"), HINT, *ids("37"))
    assert one.step(units).metrics["distill/trained_units"] == 8


def test_sdft_abstains_without_a_demonstration(model_path):
    recipe = SDFTRecipe(SDFTKnobs())
    unit = batch(recipe.learner(model_path))[0].model_copy(update={"metadata": {}})
    assert asyncio.run(recipe.signal(unit, None)) is None


def test_a_recipe_takes_its_demonstration_from_a_function(model_path):
    words = {"demonstration": "recipes.distillation.messages:words_in", "template": TEMPLATE}
    recipe = load_recipe("recipes.sdft.recipe:SDFTRecipe", words)
    unit = batch(recipe.learner(model_path))[0].model_copy(update={"feedback": "12"})
    signal = asyncio.run(recipe.signal(unit, None))
    assert signal.teacher == ({"role": "user", "content": "a[12"},)
    assert (signal.words, signal.score) == ("12", unit.score)
    with pytest.raises(BadConfig):
        load_recipe("recipes.sdft.recipe:SDFTRecipe", {"demonstration": "nowhere:fn"})


@pytest.mark.parametrize("target", ["answer", "demonstration"])
def test_sft_raises_the_probability_of_its_target(model_path, target):
    recipe = SFTRecipe(SFTKnobs(target=target, batch_size=8, min_score=0.0, **ADAPTER))
    one = recipe.learner(model_path)
    units = recipe.decide(batch(one), LoadId("run", 0)).batch
    first = one.step(units).metrics["distill/loss"]
    for _ in range(5):
        last = one.step(units).metrics["distill/loss"]
    assert last < 0.8 * first
    expected = {"answer": units[0].tokens[2:], "demonstration": (*ids("37"), START)}
    assert one.target(units[0]).response == expected[target]


def test_a_template_that_fails_costs_the_batch_not_the_process(model_path, tmp_path):
    from recipes.distillation.tokens import PromptTokenizer

    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system') }}")
    with pytest.raises(Poison, match="no system"):
        PromptTokenizer(tmp_path).prompt([{"role": "user", "content": "a"}])


def test_the_teacher_is_asked_with_the_options_of_the_request(tmp_path):
    """And with no argument of the function that renders: a client could run a program by it."""
    from recipes.distillation.tokens import PromptTokenizer

    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ messages[0]['content'] }}{% if thinking is false %}0{% endif %}"
    )
    said = ({"role": "user", "content": "a"},)
    options = {"thinking": False, "chat_template": "1", "tokenize": True}
    unit = sample(metadata={"reef_template_options": options})
    tokenizer = PromptTokenizer(tmp_path)
    assert tokenizer.prompt(said, unit) == ids("a0")
    assert tokenizer.prompt(said, sample()) == ids("a")


@pytest.mark.parametrize(
    ("behind", "ends"), [("<end>\n", (27,)), ("<s>", (START,)), ("b", (START,)), (None, (START,))]
)
def test_a_demonstration_ends_as_the_template_ends_a_turn(tmp_path, behind, ends):
    from tokenizers import Tokenizer

    from recipes.distillation.tokens import PromptTokenizer

    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{{ messages[1]['content'] }}" + behind if behind else "{{ raise_exception('') }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    assert PromptTokenizer(tmp_path).answer("37") == (*ids("37"), *ends)


def test_an_average_may_begin_with_a_state_that_has_none(model_path, tmp_path):
    """Else a changed `average_rate` would leave the learner without a start."""
    first = sdpo(average_rate=0.0).learner(model_path)
    first.step(batch(first))
    first.save(tmp_path)
    later = sdpo(average_rate=0.5).learner(model_path)
    later.load(tmp_path)
    assert same(weights(first), dict(later.average._adapter()))
