#include "longspan/account/tower_memory.h"

#include <doctest/doctest.h>

namespace longspan {
namespace {

constexpr int64_t kPatches = 96;

/// A tower of 3 blocks in fp32 with 16 numbers of a hidden state, 2 heads, 24 inner activations and
/// 8 numbers of a patch.
MemoryFacts with_tower() {
  MemoryFacts facts;
  facts.compute_bytes = 4;
  facts.num_tokens = 1024;
  VisionSpec& vision = facts.tower.spec;
  vision.num_channels = 2;
  vision.patch_size = 2;
  vision.merge_size = 2;
  vision.depth = 3;
  vision.hidden_size = 16;
  vision.num_heads = 2;
  vision.output_size = 12;
  vision.mlp = {.intermediate_size = 24, .names = {"fc1", "fc2"}};
  facts.tower.num_patches = facts.tower.largest_frame = kPatches;
  return facts;
}

TEST_CASE("tower memory: saved tensors, number by number") {
  MemoryFacts facts = with_tower();
  const auto saved = [&] { return tower_memory(facts).saved; };
  // A block saves its input, the attention's output, and a log-sum-exp for each head. The merger
  // saves its input, the patch embedding the pixels.
  facts.checkpointing = true;
  CHECK(saved() == kPatches * 4.0 * (3 * (16 + 16 + 2) + 16 + 8));
  // Also queries, keys, values, the hidden state before the MLP and its inner activations.
  facts.checkpointing = false;
  CHECK(saved() == kPatches * 4.0 * (3 * (16 + 16 + 2 + 3 * 16 + 16 + 24) + 16 + 8));
  facts.tower.first_saving_block = 2;
  CHECK(saved() == kPatches * 4.0 * ((16 + 16 + 2 + 3 * 16 + 16 + 24) + 16));
  facts.tower.first_saving_block = 3;  // the merger alone
  CHECK(saved() == kPatches * 4.0 * 16);
  facts.tower.first_saving_block = 4;
  CHECK(saved() == 0);
  CHECK(tower_memory(facts).backward == 0);
  facts.tower.num_patches = 0;
  CHECK(tower_memory(facts).forward == 0);
}

TEST_CASE("tower memory: offloaded blocks are on the host, their mergers' inputs on the device") {
  MemoryFacts facts = with_tower();
  facts.checkpointing = facts.offload_activations = true;
  facts.tower.spec.deepstack = {1};
  const TowerMemory memory = tower_memory(facts);
  CHECK(memory.saved == kPatches * 4.0 * (2 * 16 + 8));
  CHECK(memory.saved_on_host == kPatches * 4.0 * 3 * (16 + 16 + 2));
  facts.in_file = true;
  CHECK(tower_memory(facts).saved_on_host == 0);
}

}  // namespace
}  // namespace longspan
