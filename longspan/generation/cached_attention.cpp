#include "longspan/generation/cached_attention.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "longspan/attention/sinks.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/attention/two_way_blocks.h"

namespace longspan {

CachedAttention::CachedAttention(const BlockKernel& kernel, int64_t num_layers,
                                 int64_t num_recurrences, int64_t num_sequences)
    : kernel_(kernel),
      layers_(num_layers),
      recurrences_(num_recurrences, std::vector<CarriedStates>(num_sequences)),
      lengths_(num_sequences, 0) {}

void CachedAttention::begin_pass(std::vector<int64_t> sequences) {
  sequences_ = std::move(sequences);
  next_layer_ = next_recurrence_ = 0;
}

void CachedAttention::begin_layer() {
  TORCH_CHECK(next_recurrence_++ < recurrences_.size(), "cached states: more calls than layers");
}

CarriedStates& CachedAttention::of_document(int64_t document) {
  return recurrences_[next_recurrence_ - 1].at(sequences_.at(document));
}

void CachedAttention::truncate(int64_t sequence, int64_t length) {
  TORCH_CHECK(length >= 0 && length <= lengths_[sequence], "truncate: ", length, " of ",
              lengths_[sequence], " tokens");
  TORCH_CHECK(recurrences_.empty() || length == 0 || length == lengths_[sequence],
              "truncate: states do not go back from ", lengths_[sequence], " to ", length,
              " tokens");
  if (length < lengths_[sequence]) {
    for (std::vector<CarriedStates>& layer : recurrences_) layer[sequence] = {};
  }
  lengths_[sequence] = length;
}

void CachedAttention::make_room(at::Tensor& cache_MSCH, const at::Tensor& x_TMH,
                                int64_t length) const {
  const int64_t S = std::ssize(lengths_), M = x_TMH.size(1), H = x_TMH.size(2);
  const int64_t old_C = cache_MSCH.defined() ? cache_MSCH.size(2) : 0;
  if (length <= old_C) return;
  const int64_t wanted = std::max(length, old_C + old_C / 2);
  const int64_t C = (wanted + kRoomStep - 1) / kRoomStep * kRoomStep;
  at::Tensor larger = at::empty({M, S, C, H}, x_TMH.options());
  if (old_C > 0) larger.narrow(2, 0, old_C).copy_(cache_MSCH);
  cache_MSCH = std::move(larger);
}

at::Tensor CachedAttention::attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                                   const Packing& packing, AttentionCheckpoint /*checkpoint*/) {
  c10::NoGradGuard no_grad;
  TORCH_CHECK(packing.num_documents() == std::ssize(sequences_),
              "cached attention: ", packing.num_documents(), " documents for ", sequences_.size(),
              " sequences");
  TORCH_CHECK(!packing.has_forks(), "cached attention has no forks");
  TORCH_CHECK(next_layer_ < layers_.size(), "cached attention: more calls than layers");
  Layer& layer = layers_[next_layer_++];
  int64_t longest = 0;
  for (int64_t i = 0; i < packing.num_documents(); ++i) {
    longest = std::max(longest, lengths_[sequences_[i]] + packing.length(i));
  }
  make_room(layer.k_MSCH, inputs.k_SMH, longest);
  make_room(layer.v_MSCH, inputs.v_SMH, longest);

  const int64_t C = layer.k_MSCH.size(2);
  std::vector<Block> blocks;
  blocks.reserve(sequences_.size());
  for (int64_t i = 0; i < packing.num_documents(); ++i) {
    const int64_t sequence = sequences_[i], before = lengths_[sequence];
    const int64_t begin = packing.begin(i), size = packing.length(i);
    const auto append = [&](const at::Tensor& cache, const at::Tensor& x_TMH) {
      cache.select(1, sequence)
          .narrow(1, before, size)
          .copy_(x_TMH.narrow(0, begin, size).transpose(0, 1));
    };
    append(layer.k_MSCH, inputs.k_SMH);
    append(layer.v_MSCH, inputs.v_SMH);
    // A single token is the last one and sees all, so its block needs no mask.
    const Block all{begin, size, sequence * C, before + size, size > 1, size > 1 ? before : 0};
    for (const Block& block : within_window({all}, spec.window, {{begin, size, before}},
                                            {{sequence * C, before + size, 0}})) {
      blocks.push_back(block);
    }
    add_two_way_blocks(blocks, packing, {{begin, size, begin}},
                       {{sequence * C + before, size, begin}});
    if (next_layer_ == layers_.size()) lengths_[sequence] += size;
  }
  const auto tokens_first = [](const at::Tensor& cache) {
    return cache.flatten(1, 2).transpose(0, 1);
  };
  return with_sinks(kernel_.forward(inputs.q_TNH, tokens_first(layer.k_MSCH),
                                    tokens_first(layer.v_MSCH), spec, blocks),
                    inputs.sinks_N, spec)
      .out_TNH;
}

}  // namespace longspan
