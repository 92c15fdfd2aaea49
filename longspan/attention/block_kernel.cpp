// T: query tokens, N: query heads, L: queries of a later round.
#include "longspan/attention/block_kernel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/attention/merge.h"
#include "longspan/base/user_error.h"

namespace longspan {
namespace {

bool is_empty(const Block& block) { return block.q_length == 0 || block.k_length == 0; }

void check_spec(const KernelAbilities& kernel, const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                const at::Tensor& v_SMH, const AttentionSpec& spec,
                const std::vector<Block>& blocks) {
  const auto refuse = [&](const char* feature) {
    throw UserError(fmt::format(
        "{} cannot compute attention with {}, which a layer of the model asks for. Take "
        "a model that has none.",
        kernel.name, feature));
  };
  if (spec.window && !kernel.window) refuse("a sliding window");
  if (!kernel.window && have_lower_ends(blocks)) refuse("pictures whose tokens see each other");
  if (spec.softcap && !kernel.softcap) refuse("a softcap on its scores");
  const int64_t head_dim = std::max(spec.key_dim, spec.value_dim);
  if (kernel.most_head_dim > 0 && head_dim > kernel.most_head_dim) {
    throw UserError(fmt::format(
        "{} computes heads of at most {} numbers, and a layer of the model has {}. Take a model "
        "with shorter heads, or train it on the CPU.",
        kernel.name, kernel.most_head_dim, head_dim));
  }
  TORCH_CHECK(q_TNH.size(2) == spec.key_dim && k_SMH.size(2) == spec.key_dim &&
                  v_SMH.size(2) == spec.value_dim,
              "attention: heads of ", q_TNH.size(2), ", ", k_SMH.size(2), " and ", v_SMH.size(2),
              " numbers, where the layer's keys have ", spec.key_dim, " and its values ",
              spec.value_dim);
}

// Recognizes only blocks in ascending order of queries, as callers make them, so it needs no
// sorting.
bool queries_are_once(const std::vector<Block>& blocks) {
  int64_t end = 0;
  for (const Block& block : blocks) {
    if (is_empty(block)) continue;
    if (block.q_begin < end) return false;
    end = block.q_begin + block.q_length;
  }
  return true;
}

// The queries of a round, packed.
struct Rows {
  struct Run {
    int64_t begin, length;
  };
  std::vector<Run> runs;
  std::vector<Block> blocks;  // q_begin counted in the packed rows

  // `round` is in the order of its queries.
  explicit Rows(std::vector<Block> round) : blocks(std::move(round)) {
    int64_t num_rows = 0;
    for (Block& block : blocks) {
      if (!runs.empty() && runs.back().begin + runs.back().length == block.q_begin) {
        runs.back().length += block.q_length;
      } else {
        runs.push_back({block.q_begin, block.q_length});
      }
      block.q_begin = num_rows;
      num_rows += block.q_length;
    }
  }

  at::Tensor of(const at::Tensor& x_TNH) const {
    std::vector<at::Tensor> parts;
    parts.reserve(runs.size());
    for (const auto& [begin, length] : runs) parts.push_back(x_TNH.narrow(0, begin, length));
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }

  void merge_into(AttentionResult& total, const AttentionResult& part) const {
    int64_t row = 0;
    for (const auto& [begin, length] : runs) {
      AttentionResult rows{total.out_TNH.narrow(0, begin, length),
                           total.lse_NT.narrow(1, begin, length)};
      merge_(rows, {part.out_TNH.narrow(0, row, length), part.lse_NT.narrow(1, row, length)});
      row += length;
    }
  }
};

}  // namespace

std::vector<std::vector<Block>> rounds_of(const std::vector<Block>& blocks) {
  std::vector<Block> sorted;
  sorted.reserve(blocks.size());
  std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(sorted),
               [](const Block& block) { return !is_empty(block); });
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Block& a, const Block& b) { return a.q_begin < b.q_begin; });
  std::vector<std::vector<Block>> rounds;
  for (const Block& block : sorted) {
    auto round = std::find_if(rounds.begin(), rounds.end(), [&](const auto& other) {
      return other.back().q_begin + other.back().q_length <= block.q_begin;
    });
    if (round == rounds.end()) round = rounds.emplace(rounds.end());
    round->push_back(block);
  }
  return rounds;
}

AttentionResult BlockKernel::forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                     const at::Tensor& v_SMH, const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const {
  check_spec(abilities(), q_TNH, k_SMH, v_SMH, spec, blocks);
  if (queries_are_once(blocks)) return forward_round(q_TNH, k_SMH, v_SMH, spec, blocks);
  std::vector<std::vector<Block>> rounds = rounds_of(blocks);
  AttentionResult total = forward_round(q_TNH, k_SMH, v_SMH, spec, rounds[0]);
  total.out_TNH = total.out_TNH.to(total.lse_NT.scalar_type());
  for (size_t round = 1; round < rounds.size(); ++round) {
    const Rows rows(std::move(rounds[round]));
    rows.merge_into(total, forward_round(rows.of(q_TNH), k_SMH, v_SMH, spec, rows.blocks));
  }
  total.out_TNH = total.out_TNH.to(q_TNH.scalar_type());
  return total;
}

AttentionGradients BlockKernel::backward(const AttentionGradientInputs& inputs,
                                         const AttentionSpec& spec,
                                         const std::vector<Block>& blocks) const {
  check_spec(abilities(), inputs.q_TNH, inputs.k_SMH, inputs.v_SMH, spec, blocks);
  return backward_blocks(inputs, spec, blocks);
}

}  // namespace longspan
