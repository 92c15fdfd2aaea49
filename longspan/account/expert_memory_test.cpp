// Experts in the memory estimate.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "longspan/account/memory_model.h"

namespace longspan {
namespace {

/// A model of 1000 trained parameters in fp32 and a row of 1024 tokens.
MemoryFacts some_facts() {
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  MemoryFacts facts;
  facts.hidden_size = 64;
  facts.layers = {{cost_of(LayerSpec{mixer, GatedMlpSpec{160}}, 64), 5}};
  facts.angle_numbers = 16;
  facts.vocab_size = 100;
  facts.parameter_bytes = facts.trained_parameter_bytes = 4000;
  facts.num_trained = 1000;
  facts.largest_unit_bytes = 400;
  facts.num_tokens = facts.num_labels = 1024;
  return facts;
}

const MemoryAccount::Line& line(const MemoryAccount& account, const std::string& name) {
  const auto found =
      std::find_if(account.lines.begin(), account.lines.end(),
                   [&](const MemoryAccount::Line& line) { return line.name.ends_with(name); });
  REQUIRE(found != account.lines.end());
  return *found;
}

TEST_CASE("memory account: experts that are shared out are divided among fewer ranks") {
  MemoryFacts facts = some_facts();
  facts.shard_size = 4;
  facts.expert_parallel_size = 2;
  facts.expert_shard_size = 2;
  facts.num_trained_of_experts = 600;  // those of this rank
  facts.trained_expert_bytes = 2400;
  CHECK(line(account_of(facts), "Optimizer").device == 8000);
  facts.zero_stage = 2;
  CHECK(line(account_of(facts), "Optimizer").device == 8 * (400 / 4 + 600 / 2));
  CHECK(line(account_of(facts), "Gradients").device == 4 * (400 / 4 + 600 / 2));
}

TEST_CASE("memory account: what layers whose experts are shared out exchange") {
  MemoryFacts facts = some_facts();
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  const MixtureOfExpertsSpec experts{
      .num_experts = 8, .experts_per_token = 2, .expert_size = 400, .router = {}, .shared = {}};
  facts.layers = {{cost_of(LayerSpec{mixer, experts}, 64), 5}};
  facts.num_tokens = facts.num_labels = 1000;  // a chunk in any case
  const int64_t alone = account_of(facts).device;
  facts.expert_parallel_size = 2;
  // The peak is the experts' backward: inputs, output gradients and input gradients of two experts
  // per row, outgoing and incoming.
  CHECK(account_of(facts).device - alone == int64_t{1000} * 6 * 2 * 64 * 4);
}

TEST_CASE("memory account: experts that a GPU works on at once") {
  MemoryFacts facts = some_facts();
  facts.cuda = true;
  facts.residual_bytes = facts.compute_bytes = 2;
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  MixtureOfExpertsSpec experts{
      .num_experts = 8, .experts_per_token = 2, .expert_size = 400, .router = {}, .shared = {}};
  facts.layers = {{cost_of(LayerSpec{mixer, experts}, 64), 5}};
  facts.num_tokens = facts.num_labels = 1000;  // a chunk in any case
  const auto device = [&] { return account_of(facts).device; };
  const int64_t one_by_one = device();
  facts.experts_at_once = true;
  const int64_t at_once = device();
  // For each of a row's two experts: its tensors and the row's place; for the row: the fp32 input
  // gradient once, without the second one that it would be added to.
  constexpr int64_t kOneByOne = 4 * 400 + 3 * 64 + 2 * (2 * 64 + 4 * 8),
                    kAtOnce = 2 * (4 * 400 + 18) + 2 * (64 + 4 * 8);
  CHECK(at_once - one_by_one == 1000 * 2 * (kAtOnce - kOneByOne));
  facts.expert_adapter_rank = 16;
  CHECK(device() - at_once == 1000 * 2 * (2 * 2 * 16));
  facts.expert_adapter_rank = 0;
  facts.expert_parallel_size = 2;
  CHECK(device() - at_once == 1000 * 2 * (2 * 2 * 64));  // of two: the row and its gradient
  facts.expert_parallel_size = 1;
  // Sizes that are not multiples of eight are computed one expert after the other.
  experts.expert_size = 396;
  facts.layers = {{cost_of(LayerSpec{mixer, experts}, 64), 5}};
  const int64_t odd = device();
  facts.experts_at_once = false;
  CHECK(device() == odd);
  // The chunk size depends on the width of all experts of a row: 16,777 rows here, and 33,554.
  experts.expert_size = 4000;
  facts.layers = {{cost_of(LayerSpec{mixer, experts}, 64), 5}};
  const auto is_one_chunk = [&](int64_t num_tokens) {
    const auto of = [&](int64_t tokens) {
      facts.num_tokens = facts.num_labels = tokens;
      return device();
    };
    return of(num_tokens + 200) - of(num_tokens + 100) > 100 * 2 * 4 * 4000;
  };
  CHECK(is_one_chunk(33'000));
  CHECK_FALSE(is_one_chunk(34'000));
  facts.experts_at_once = true;
  CHECK(is_one_chunk(16'000));
  CHECK_FALSE(is_one_chunk(17'000));
}

TEST_CASE("memory account: a pass with enough tokens casts the matrices of all experts") {
  MemoryFacts facts = some_facts();
  facts.cuda = facts.experts_at_once = facts.casts_blocks = true;
  facts.residual_bytes = facts.compute_bytes = 2;
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  const MixtureOfExpertsSpec experts{
      .num_experts = 8, .experts_per_token = 2, .expert_size = 400, .router = {}, .shared = {}};
  facts.layers = {{cost_of(LayerSpec{mixer, experts}, 64), 5}};
  facts.layers[0].casts = expert_casts(experts, 64);
  // Bytes that one more token adds, without those of the token itself.
  const auto step_to = [&](int64_t num_tokens) {
    const auto device = [&](int64_t tokens) {
      facts.num_tokens = facts.num_labels = tokens;
      return account_of(facts).device;
    };
    const int64_t before = device(num_tokens - 1);
    return device(num_tokens) - before - (before - device(num_tokens - 2));
  };
  constexpr int64_t kEnough = 128 * 8 / 2, kExpert = 3 * 400 * 64;
  CHECK(step_to(kEnough) == 2 * 7 * kExpert);  // an expert's matrices are counted in any case
  CHECK(step_to(kEnough + 2) == 0);
  facts.expert_parallel_size = 4;
  CHECK(step_to(kEnough) == 2 * (2 - 1) * kExpert);
  facts.expert_parallel_size = 1;
  // A library copies rows: inputs, and results of gate and up, of a token's two experts.
  const auto copied = [&](int64_t tokens) {
    facts.num_tokens = facts.num_labels = tokens;
    facts.copies_rows_of_experts = false;
    const int64_t without = account_of(facts).device;
    facts.copies_rows_of_experts = true;
    return account_of(facts).device - without;
  };
  CHECK(copied(kEnough - 1) == 0);
  CHECK(copied(kEnough) == kEnough * 2 * 2 * (64 + 2 * 400));
  CHECK(copied(16'000) == int64_t{32} << 20);
  facts.copies_rows_of_experts = false;
  // Adapters in fp32 beside matrices in bf16.
  facts.casts_blocks = false;
  facts.expert_adapter_rank = 16;
  CHECK(step_to(kEnough) == 0);
  facts.casts_expert_adapters = true;
  CHECK(step_to(kEnough) == 2 * 8 * 16 * 3 * (400 + 64));
  facts.experts_at_once = false;
  CHECK(step_to(kEnough) == 0);
}

}  // namespace
}  // namespace longspan
