#include "longspan/generation/cached_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "longspan/kernels/gemm.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

DecoderOptions options_for(const std::vector<NamedTensor>& parameters) {
  DecoderOptions options;
  options.gradient_checkpointing = false;
  options.compute_dtype = parameters.front().tensor.scalar_type();
  return options;
}

at::Tensor head_of(const ModelSpec& spec, const std::vector<NamedTensor>& parameters) {
  const std::vector<ParameterSpec> specs = parameters_of(spec);
  const auto head =
      std::ranges::find_if(specs, [&](const ParameterSpec& p) { return spec.is_head(p.role); });
  return std::ranges::find(parameters, head->name, &NamedTensor::name)->tensor;
}

/// Returns the logits of these rows, in fp32.
at::Tensor logits_of(const at::Tensor& hidden_LD, const at::Tensor& head_VD) {
  const at::Tensor logits_LV = gemm(hidden_LD, head_VD.t());
  return logits_LV.to(arithmetic_dtype(logits_LV.scalar_type()));
}

/// The number of layers with softmax attention, whose keys and values are cached.
int64_t num_attentions(const ModelSpec& spec) {
  int64_t layers = 0;
  for (const auto& [attention, count] : attentions_of(spec)) layers += count;
  return layers;
}

std::vector<RopeScaling> scalings_of(const ModelSpec& spec) {
  std::vector<RopeScaling> scalings;
  for (const RotaryKind& kind : rotary_kinds_of(spec)) scalings.push_back(kind.rotary.scaling);
  return scalings;
}

}  // namespace

CachedDecoder::CachedDecoder(const ModelSpec& spec, std::vector<NamedTensor> parameters,
                             int64_t num_sequences, int64_t max_length)
    : tokens_(num_sequences),
      num_positions_(num_sequences),
      scalings_(scalings_of(spec)),
      max_length_(max_length),
      states_go_back_(!goes_over_rows(spec)),
      attention_(cpu_block_kernel(), num_attentions(spec), spec.num_layers - num_attentions(spec),
                 num_sequences),
      decoder_(spec, parameters, attention_, options_for(parameters)),
      head_VD_(head_of(spec, parameters)) {}

void CachedDecoder::truncate(int64_t sequence, int64_t length) {
  if (!states_go_back_ && length < std::ssize(tokens_[sequence])) length = 0;
  attention_.truncate(sequence, length);
  tokens_[sequence].resize(length);
}

bool CachedDecoder::turn_alike(int64_t one, int64_t other) const {
  return std::ranges::all_of(scalings_, [&](const RopeScaling& scaling) {
    return scaling.is_long(one) == scaling.is_long(other);
  });
}

std::vector<CachedDecoder::Extension> CachedDecoder::with_what_turns_otherwise(
    std::vector<Extension> extensions) {
  for (auto& [sequence, added] : extensions) {
    std::vector<int32_t>& all = tokens_[sequence];
    const int64_t length = std::ssize(all) + std::ssize(added);
    if (!all.empty() && !turn_alike(num_positions_[sequence], length)) {
      added.insert(added.begin(), all.begin(), all.end());
      truncate(sequence, 0);
    }
    num_positions_[sequence] = length;
  }
  return extensions;
}

at::Tensor CachedDecoder::extend(const std::vector<Extension>& wanted,
                                 const std::function<bool()>& go_on) {
  c10::NoGradGuard no_grad;
  const std::vector<Extension> extensions = with_what_turns_otherwise(wanted);
  std::vector<at::Tensor> logits;
  size_t next = 0;         // index of an extension
  int64_t next_token = 0;  // index in that extension
  while (next < extensions.size()) {
    if (!go_on()) return {};
    // One chunk: several extensions. The last may be partial.
    std::vector<int64_t> sequences, lengths, tokens, positions, last_rows;
    for (; next < extensions.size() && std::ssize(tokens) < kChunkTokens;) {
      const auto& [sequence, added] = extensions[next];
      if (!sequences.empty() &&
          !turn_alike(num_positions_[sequences.front()], num_positions_[sequence])) {
        break;
      }
      const int64_t left = std::ssize(added) - next_token;
      TORCH_CHECK(left > 0, "an extension without tokens");
      const int64_t size = std::min(left, kChunkTokens - std::ssize(tokens));
      const int64_t before = std::ssize(tokens_[sequence]);
      TORCH_CHECK(before + size <= max_length_, "a sequence of ", before + size,
                  " tokens, where the model takes ", max_length_);
      for (int64_t i = 0; i < size; ++i) {
        tokens.push_back(added[next_token + i]);
        positions.push_back(before + i);
      }
      sequences.push_back(sequence);
      lengths.push_back(size);
      next_token += size;
      if (size < left) break;
      last_rows.push_back(std::ssize(tokens) - 1);
      ++next;
      next_token = 0;
    }
    Batch batch;
    batch.packing = Packing::from_lengths(lengths);
    batch.tokens_T = at::tensor(tokens, at::kLong);
    batch.positions_T = at::tensor(positions, at::kLong);
    batch.num_positions = num_positions_[sequences.front()];
    attention_.begin_pass(sequences);
    const at::Tensor hidden_LD = decoder_.hidden_states(batch, at::tensor(last_rows, at::kLong));
    auto read = tokens.begin();
    for (size_t i = 0; i < sequences.size(); read += lengths[i++]) {
      std::vector<int32_t>& all = tokens_[sequences[i]];
      all.insert(all.end(), read, read + lengths[i]);
    }
    if (!last_rows.empty()) logits.push_back(logits_of(hidden_LD, head_VD_));
  }
  return logits.size() == 1 ? logits[0] : at::cat(logits);
}

}  // namespace longspan
