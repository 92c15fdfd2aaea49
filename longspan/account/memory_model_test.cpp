#include "longspan/account/memory_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "longspan/account/step_peak.h"
#include "longspan/attention/flash_accumulators.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

std::vector<MemoryFacts::Layers> some_layers(int64_t count, int64_t intermediate_size) {
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  return {{cost_of(LayerSpec{mixer, GatedMlpSpec{intermediate_size}}, 64), count}};
}

/// A model of 1000 trained parameters in fp32 and a row of 1024 tokens.
MemoryFacts some_facts() {
  MemoryFacts facts;
  facts.hidden_size = 64;
  facts.layers = some_layers(5, 160);
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

TEST_CASE(
    "memory account: what layers have chosen stays on the device, however the rest is saved") {
  MemoryFacts facts = some_facts();
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 16);
  MixtureOfExpertsSpec experts{
      .num_experts = 8, .experts_per_token = 2, .expert_size = 400, .router = {}, .shared = {}};
  facts.layers = {{cost_of(LayerSpec{mixer, experts}, 64), 5}};
  facts.num_labels = 256;  // a quarter of the last layer's rows
  MemoryFacts none = facts;
  none.layers[0].cost.feed_forward.choice_bytes = 0;
  for (const bool checkpointing : {true, false}) {
    for (const int64_t tiles : {0, 3}) {
      for (const bool offloads : {false, true}) {
        for (MemoryFacts* each : {&facts, &none}) {
          each->checkpointing = checkpointing;
          each->mlp_tiles = tiles;
          each->offload_activations = offloads;
        }
        // Two experts per token, two bytes each.
        CHECK(account_of(facts).device - account_of(none).device == 1024 * 17);
        CHECK(account_of(facts).host == account_of(none).host);
      }
    }
  }
}

TEST_CASE("memory account: states by stage, shard and offload") {
  MemoryFacts facts = some_facts();
  facts.shard_size = 4;
  const MemoryAccount whole = account_of(facts);
  CHECK(line(whole, "Parameters").device == 4000);
  CHECK(line(whole, "Gradients").device == 4000);
  CHECK(line(whole, "Optimizer").device == 8000);
  facts.zero_stage = 1;
  CHECK(line(account_of(facts), "Optimizer").device == 2000);
  CHECK(line(account_of(facts), "Parameters").device == 4000);
  facts.zero_stage = 3;
  facts.offload_optimizer = true;
  const MemoryAccount sharded = account_of(facts);
  CHECK(line(sharded, "Parameters").device == 1000);
  CHECK(line(sharded, "Optimizer").device == 0);
  CHECK(line(sharded, "Optimizer").host == 2000);
  int64_t device = 0, host = 0;
  for (const MemoryAccount::Line& each : sharded.lines) {
    device += each.device;
    host += each.host;
  }
  CHECK(sharded.device == device);
  CHECK(sharded.host == host);
  // A reference model adds to both roles.
  facts.reference_on_device = 30;
  facts.reference_on_host = 500;
  CHECK(account_of(facts).device == device + 30);
  CHECK(account_of(facts).host == host + 500);
  // On a GPU, a unit's sums land on the host before they are added to the share.
  facts.largest_unit_gradient_bytes = 400;
  facts.cuda = true;
  CHECK(account_of(facts).host == host + 500 + 100);
  facts.zero_stage = 1;
  CHECK(line(account_of(facts), "of a unit").host == 100);
  facts.offload_optimizer = false;
  CHECK(account_of(facts).host == 0 + 500);
}

TEST_CASE("memory account: memory of a reduction of gradients") {
  using enum GradientReduction;
  constexpr int64_t kMiB = int64_t{1} << 20;
  // A part for each of 128 ranks has 4 MiB.
  for (const auto& [ranks, chunk] :
       {std::pair<int64_t, int64_t>{8, 64 * kMiB}, {128, 512 * kMiB}}) {
    CHECK(reduction_chunk_bytes(ranks) == chunk);
    CHECK(bytes_under_reduction(kExchange, ranks, chunk) == chunk);
    CHECK(bytes_under_reduction(kExchange, ranks, 9 * chunk) == 4 * chunk);
    CHECK(bytes_under_reduction(kScatter, ranks, 9 * chunk) == 0);
    CHECK(bytes_under_reduction(kWidenedScatter, ranks, chunk) == 2 * chunk);
    CHECK(bytes_under_reduction(kWidenedScatter, ranks, 9 * chunk) == 6 * chunk);
  }
  // With earlier rows, the sum of the unit before is there until it is added.
  GradientSums sums{.ranks = 4, .at_once = true, .reduction = kScatter};
  CHECK(gradients_under_way(sums, /*cuda=*/true, 100, 200, 300) == 300);
  sums.added = true;
  CHECK(gradients_under_way(sums, /*cuda=*/true, 100, 200, 300) == 350);
  sums.reduction = kExchange;
  CHECK(gradients_under_way(sums, /*cuda=*/true, 100, 200, 300) == 500);
}

TEST_CASE("memory account: a token costs layers without offloading, and one block with it") {
  MemoryFacts facts = some_facts();
  const auto cost = [](MemoryFacts of, int64_t num_layers) {
    of.layers[0].count = num_layers;
    return account_of(of).activation_bytes_per_token;
  };
  // h, attention's output and one element per head, all in fp32.
  const double kept = 4 * 64 + 4 * 64 + 4 * 4;
  CHECK(cost(facts, 9) - cost(facts, 5) == doctest::Approx(4 * kept));
  facts.offload_activations = true;
  CHECK(cost(facts, 9) == doctest::Approx(cost(facts, 5)));
  CHECK(token_bytes(facts).on_host == doctest::Approx(5 * kept + 4 * 64));
  facts.in_file = true;
  CHECK(account_of(facts).host == 0);
  facts = some_facts();
  facts.checkpointing = false;
  // Queries, keys, values, a norm, the row between the halves, gate and up.
  const double all = kept + 4 * 64 + 2 * 4 * 32 + 4 + 4 * 64 + 2 * 4 * 160;
  CHECK(cost(facts, 9) - cost(facts, 5) == doctest::Approx(4 * all));
  facts.mlp_tiles = 2;
  CHECK(cost(facts, 9) - cost(facts, 5) == doctest::Approx(4 * (all - 2 * 4 * 160)));
}

TEST_CASE("memory account: gradients are made while activations go") {
  MemoryFacts facts = some_facts();
  facts.vocab_size = 1;
  facts.num_labels = 1024;
  // Layers whose gradients are as large as their saved tensors, and a larger gradient of the
  // embedding.
  const int64_t saved = 1024 * (4 * 64 + 4 * 64 + 4 * 4);
  facts.units.layers.assign(5, {.gradients = saved});
  facts.units.embedding.gradients = 100 * saved;
  facts.trained_parameter_bytes = 5 * saved + facts.units.embedding.gradients;
  // In a step of several rows both exist in full.
  const MemoryAccount several = account_of(facts);
  CHECK(line(several, "Activations saved").device == 5 * saved);
  CHECK(table_of(several).find("Never at once") == std::string::npos);
  // In a step of one row the embedding's backward is last, when all gradients and only a gradient
  // of h exist.
  facts.accumulates = false;
  const MemoryAccount one = account_of(facts);
  const int64_t h = 1024 * (4 * 64 + 64);
  const double index = 32 * 2 + 4 * 16 + 16;
  CHECK(one.device == facts.parameter_bytes + 8 * facts.num_trained +
                          facts.trained_parameter_bytes + h + std::llround(1024 * index));
  // With a small embedding, the peak would be in a layer: the gradients of it and of the layers
  // above, plus the saved tensors of it and of the layers below, sum to a constant.
  facts.trained_parameter_bytes -= facts.units.embedding.gradients;
  facts.units.embedding.gradients = 0;
  CHECK(several.device - account_of(facts).device == 4 * saved + 100 * saved);
  // A layer's kept tensors are freed with it. If two layers keep, the last one's are freed before
  // the other's backward, which has more gradients.
  const int64_t without = account_of(facts).device;
  facts.layers[0].kept = 1;
  const int64_t gate_and_up = 1024 * 2 * 4 * 160;
  const int64_t with_one = account_of(facts).device;
  facts.layers[0].kept = 2;
  const int64_t with_two = account_of(facts).device;
  CHECK(with_one == without);
  CHECK(with_two == without + gate_and_up);
}

TEST_CASE("memory account: the embedding is gathered with the first layer") {
  MemoryFacts facts = some_facts();
  facts.zero_stage = 3;
  facts.shard_size = 2;
  facts.vocab_size = 1;
  facts.num_labels = 1024;
  // LoRA of a reward model: the embedding is frozen, and there is no head.
  facts.units.layers.assign(5, {.gathered = 1000});
  facts.units.embedding.gathered = 1'000'000'000;
  const int64_t much = account_of(facts).device;
  facts.units.embedding.gathered += 12'345;
  CHECK(account_of(facts).device - much == 12'345);
  facts.units.layers[0].gathered += 77;
  CHECK(account_of(facts).device - much == 12'345 + 2 * 77);  // Gloo's buffer too
}

TEST_CASE("memory account: layers of several kinds") {
  MemoryFacts facts = some_facts();
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(8, 2, 32);
  facts.layers.push_back({cost_of(LayerSpec{mixer, GatedMlpSpec{40}}, 64), 3});
  facts.last_layer = 1;
  facts.num_labels = 512;  // half of the last layer's rows
  facts.checkpointing = false;
  // As above, for five layers and three; the last layer's rows also keep the mixer's output.
  const double first = 2 * 4 * 64 + 4 * 4 + 4 * 64 + 2 * 4 * 32 + 4,
               second = 4 * 64 + 4 * 256 + 4 * 8 + 4 * 256 + 2 * 4 * 64 + 4;
  const double first_mlp = 4 * 64 + 2 * 4 * 160, second_mlp = 4 * 64 + 2 * 4 * 40;
  CHECK(token_bytes(facts).saved ==
        doctest::Approx(5 * (first + first_mlp) + 3 * second + 2.5 * second_mlp + 0.5 * 4 * 256));
  // The temporary bytes are those of the layer that needs most.
  facts.vocab_size = 1;
  const double both = token_bytes(facts).working;
  facts.layers.erase(facts.layers.begin());
  facts.last_layer = 0;
  CHECK(token_bytes(facts).working == doctest::Approx(both));
  facts.layers = some_layers(5, 160);
  CHECK(token_bytes(facts).working < both);
}

TEST_CASE("memory account: what is made of matrices in use") {
  MemoryFacts facts = some_facts();
  facts.vocab_size = 100'000;  // the head is the peak
  facts.residual_bytes = facts.compute_bytes = 2;
  const auto buffers = [&] { return line(account_of(facts), "Buffers").device; };
  const int64_t weight = 64 * 100'000, before = buffers();
  // Logits of 167 rows: in compute dtype and in fp32.
  CHECK(before == 167 * 100'000 * 6);
  facts.casts_head = true;
  const int64_t part = int64_t{16} << 20;  // chunk of a product
  CHECK(buffers() - before == 2 * weight + part);
  facts.casts_head = false;
  facts.sums_head_apart = true;
  CHECK(buffers() - before == 4 * weight + part);
  facts.num_labels = 100;  // one chunk
  CHECK(buffers() == 100 * 100'000 * 6);
  // A GPU takes more rows at a time, at most 4096, and larger chunks of a product.
  facts.cuda = true;
  facts.sums_head_apart = false;
  facts.num_labels = facts.num_tokens = 10'000;
  const int64_t workspace = int64_t{64} << 20;
  CHECK(buffers() == 4096 * int64_t{100'000} * 6 + workspace);
  facts.casts_head = true;
  // The cast, and a product in fp32.
  CHECK(buffers() == 4096 * int64_t{100'000} * 6 + 2 * weight + 4 * weight + workspace);
  facts.casts_head = false;
  facts.vocab_size = 262'144;
  CHECK(buffers() == 2048 * int64_t{262'144} * 6 + workspace);

  facts = some_facts();
  facts.vocab_size = 1;
  facts.layers = some_layers(5, 1'000'000);  // the MLP is the peak
  const int64_t chunk = buffers();
  facts.casts_blocks = true;
  facts.compute_bytes = 2;
  // Rows of half the size; the mixer's output, an input and a gradient, but one more gradient in
  // it; three matrices and o_proj, and 16 MiB of a product.
  CHECK(chunk - buffers() == int64_t{1024} * (3 * 1'000'000 + (3 - 1) * 64) * 2 -
                                 2 * (3 * 64 * 1'000'000 + 64 * 64) - (int64_t{16} << 20));
}

TEST_CASE("memory account: a rank alone uses what it fetches from the host as it comes") {
  MemoryFacts facts = some_facts();
  facts.zero_stage = 3;
  facts.offload_params = true;
  CHECK(line(account_of(facts), "gathered").device == 2 * 400);
  facts.shard_size = 2;
  CHECK(line(account_of(facts), "gathered").device == 2 * 400 + 200);
}

TEST_CASE("memory account: what a GPU takes beside tensors, and its attention's backward") {
  MemoryFacts facts = some_facts();
  facts.hidden_size = 8;
  facts.layers = some_layers(5, 1);  // attention's backward is the peak
  facts.vocab_size = 1;
  facts.residual_bytes = facts.compute_bytes = 2;
  const MemoryAccount cpu = account_of(facts);
  CHECK(cpu.beside_tensors == 0);
  CHECK(table_of(cpu).find("Beside tensors") == std::string::npos);
  facts.cuda = true;
  const MemoryAccount gpu = account_of(facts);
  {
    // A tensor that leaves for the host stays until the copy has ended.
    MemoryFacts offloading = facts, on_cpu = facts;
    on_cpu.cuda = false;
    offloading.offload_activations = on_cpu.offload_activations = true;
    CHECK(account_of(offloading).device - account_of(on_cpu).device ==
          gpu.device - cpu.device + 1024 * 8 * 2);
  }
  // Four query heads of 16 elements, padded to 32, in pairs that share a key head: dq in fp32, dk
  // and dv in bf16, and a sum in fp32. dq has 128 rows beside its document. cuBLAS and cublasLt
  // have workspaces of 32 MiB each.
  CHECK(gpu.device - cpu.device ==
        1024 * (4 * 4 * 32 + 2 * 2 * 64 + 4 * 4) + 128 * 4 * 4 * 32 + (int64_t{64} << 20));
  CHECK(gpu.beside_tensors == int64_t{512} << 20);
  facts.num_groups = 3;
  const MemoryAccount several = account_of(facts);
  CHECK(several.device == gpu.device);
  CHECK(several.beside_tensors == int64_t{512 + 3 * 256} << 20);
  CHECK(table_of(several).find("the driver and NCCL") != std::string::npos);
}

TEST_CASE("memory account: accumulators of a GPU's attention") {
  MemoryFacts facts = some_facts();
  facts.layers = some_layers(5, 1);  // attention's backward is the peak
  facts.vocab_size = 1;
  facts.residual_bytes = facts.compute_bytes = 2;
  facts.cuda = true;
  const auto beyond = [&](auto& more) {
    return account_of(more).device - account_of(facts).device;
  };
  MemoryFacts documents = facts, deterministic = facts, in_calls = facts;
  documents.num_documents = 11;
  CHECK(beyond(documents) == 10 * 128 * 4 * 4 * 32);
  // A block of each multiprocessor has accumulators for its head of the row.
  deterministic.deterministic_multiprocessors = 132;
  CHECK(beyond(deterministic) == (1024 + 128) * 132 * 4 * 32);
  // In several calls, gradients of keys and values per query head and inputs of a call are beside
  // the sums: 2 heads of 16 elements twice in fp32, and 3 * 4 + 2 * 2 heads in bf16.
  in_calls.attends_in_calls = true;
  CHECK(beyond(in_calls) == 1024 * (2 * 4 * 2 * 16 + 2 * 16 * 16) + 1024 * 4 * 4 * 32);
  deterministic.num_tokens = facts.num_tokens = 1 << 20;
  CHECK(beyond(deterministic) ==
        FlashAccumulators::kMostBytes - 128 * 4 * 4 * 32 + (int64_t{1} << 20) * 2 * 4 * 2 * 16);
}

TEST_CASE("memory account: what a GPU composes in a mixer's backward") {
  MemoryFacts facts = some_facts();
  facts.hidden_size = 8;
  facts.layers = some_layers(5, 1);  // attention's backward is the peak
  facts.vocab_size = 1;
  const int64_t on_cpu = account_of(facts).device;
  facts.cuda = true;
  facts.layers[0].rule_tokens = 1024;
  int64_t& of_chunk = facts.layers[0].rule.chunk_bytes;
  const auto with = [&](int64_t bytes) { return of_chunk = bytes, account_of(facts).device; };
  constexpr int64_t kMuch = 1 << 20;
  CHECK(with(kMuch) > with(0));
  CHECK(with(kMuch + 12345) - with(kMuch) == 1024 / 64 * 12345);
  // Of as many chunks as fit into 2 GiB, eight at least.
  CHECK(with(int64_t{3} << 30) - with(kMuch) == 8 * (int64_t{3} << 30) - 16 * kMuch);
  facts.cuda = false;
  CHECK(account_of(facts).device == on_cpu);
}

TEST_CASE("memory account: places of tokens in documents whose positions restart") {
  MemoryFacts facts = some_facts();
  facts.sequence_size = 4;
  const double before = account_of(facts).activation_bytes_per_token;
  facts.keeps_places = true;
  // 8 bytes for each token of the whole row, and of the share.
  CHECK(account_of(facts).activation_bytes_per_token - before == doctest::Approx(8 * (4 + 1)));
}

TEST_CASE("memory account: threads of a CPU's attention") {
  MemoryFacts facts = some_facts();
  facts.attention_threads = 4;
  facts.layers = some_layers(5, 1);  // attention is the peak
  facts.vocab_size = 1;
  const int64_t four = line(account_of(facts), "Buffers").device;
  CHECK(four > 0);
  facts.attention_threads = 8;
  CHECK(line(account_of(facts), "Buffers").device == 2 * four);
  // At most the number of tiles of keys.
  facts.attention_threads = 1000;
  CHECK(line(account_of(facts), "Buffers").device == 2 * 6 * four / 4);  // of two kv heads
}

TEST_CASE("memory account: grows with the row in a straight line, and is shared by its processes") {
  MemoryFacts facts = some_facts();
  facts.offload_activations = true;
  const auto device = [&](int64_t tokens, int64_t ranks) {
    MemoryFacts longer = facts;
    longer.num_tokens = longer.num_labels = tokens;
    longer.sequence_size = ranks;
    return account_of(longer).device;
  };
  CHECK(std::abs(device(60'000, 1) - 2 * device(40'000, 1) + device(20'000, 1)) <= 4);
  CHECK(static_cast<double>(device(60'000, 2)) < 0.75 * static_cast<double>(device(60'000, 1)));
  const std::string table = table_of(account_of(facts));
  CHECK(table.find("Activations saved") != std::string::npos);
  const std::string measured =
      table_of(account_of(facts), {{1 << 20, 0, 5 << 20}, {2 << 20, 0, 0}});
  CHECK(measured.find("Measured, rank 1      2.0 MiB") != std::string::npos);
}

}  // namespace
}  // namespace longspan
