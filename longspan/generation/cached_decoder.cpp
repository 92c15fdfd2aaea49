#include "longspan/generation/cached_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "longspan/kernels/gemm.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

DecoderOptions options_for(const std::vector<NamedTensor>& parameters, PictureFeatures* pictures) {
  DecoderOptions options;
  options.pictures = pictures;
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
                             int64_t num_sequences, int64_t max_length, FramePatches patches)
    : tokens_(num_sequences),
      pictures_(num_sequences),
      num_positions_(num_sequences),
      scalings_(scalings_of(spec)),
      max_length_(max_length),
      states_go_back_(!goes_over_rows(spec)),
      attention_(cpu_block_kernel(), num_attentions(spec), spec.num_layers - num_attentions(spec),
                 num_sequences),
      tower_(spec.vision ? std::make_unique<PromptPictures>(spec, parameters, std::move(patches))
                         : nullptr),
      decoder_(spec, parameters, attention_, options_for(parameters, tower_.get())),
      head_VD_(head_of(spec, parameters)) {}

void CachedDecoder::truncate(int64_t sequence, int64_t length) {
  if (!states_go_back_ && length < std::ssize(tokens_[sequence])) length = 0;
  attention_.truncate(sequence, length);
  tokens_[sequence].resize(length);
}

std::vector<int32_t> CachedDecoder::begin(int64_t sequence, const Sample& prompt) {
  c10::NoGradGuard no_grad;
  const std::vector<int32_t>&known = tokens_[sequence], &ids = prompt.input_ids;
  const int64_t same_ids = std::ranges::mismatch(known, ids).in1 - known.begin();
  const int64_t common = pictures_[sequence].common(prompt, same_ids);
  truncate(sequence, std::min(common, std::ssize(ids) - 1));
  pictures_[sequence].begin(prompt, tower_.get());
  return {ids.begin() + std::ssize(tokens_[sequence]), ids.end()};
}

void CachedDecoder::set_positions(const PassTokens& pass, Batch& batch) const {
  const bool has_axes = std::ranges::any_of(
      pass.sequences, [this](int64_t sequence) { return pictures_[sequence].has_axes(); });
  std::vector<at::Tensor> axes;
  for (int64_t axis = 0; axis < (has_axes ? 3 : 1); ++axis) {
    std::vector<int64_t> positions;
    for (size_t i = 0; i < pass.sequences.size(); ++i) {
      positions.push_back(pictures_[pass.sequences[i]].position(axis, pass.places[i]));
    }
    axes.push_back(at::tensor(positions, at::kLong));
  }
  batch.positions_T = has_axes ? at::stack(axes) : axes[0];
}

void CachedDecoder::set_features(const PassTokens& pass, Batch& batch) {
  if (!tower_) return;
  std::vector<int64_t> rows;
  std::vector<at::Tensor> features;
  for (size_t i = 0; i < pass.sequences.size(); ++i) {
    const SequencePictures& pictures = pictures_[pass.sequences[i]];
    const int64_t feature = pictures.feature(pass.places[i]);
    if (feature < 0) continue;
    rows.push_back(static_cast<int64_t>(i));
    features.push_back(pictures.all_features()[feature]);
  }
  tower_->set(rows.empty() ? at::Tensor() : at::stack(features));
  if (!rows.empty()) batch.feature_rows_F = at::tensor(rows, at::kLong);
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
    std::vector<int64_t> sequences, tokens, last_rows;
    std::vector<Document> documents;
    PassTokens pass;
    for (; next < extensions.size() && std::ssize(tokens) < kChunkTokens;) {
      const auto& [sequence, added] = extensions[next];
      if (!sequences.empty() &&
          !turn_alike(num_positions_[sequences.front()], num_positions_[sequence])) {
        break;
      }
      const int64_t left = std::ssize(added) - next_token;
      TORCH_CHECK(left > 0, "an extension without tokens");
      const int64_t before = std::ssize(tokens_[sequence]);
      const int64_t most = std::min(left, kChunkTokens - std::ssize(tokens));
      const int64_t size = pictures_[sequence].whole_spans_end(before, before + most) - before;
      TORCH_CHECK(before + size <= max_length_, "a sequence of ", before + size,
                  " tokens, where the model takes ", max_length_);
      for (int64_t i = 0; i < size; ++i) {
        tokens.push_back(added[next_token + i]);
        pass.sequences.push_back(sequence);
        pass.places.push_back(before + i);
      }
      sequences.push_back(sequence);
      documents.push_back({size, {}, pictures_[sequence].spans_in(before, before + size)});
      next_token += size;
      if (size < left) break;
      last_rows.push_back(std::ssize(tokens) - 1);
      ++next;
      next_token = 0;
    }
    Batch batch;
    batch.packing = Packing::from_documents(documents);
    batch.tokens_T = at::tensor(tokens, at::kLong);
    set_positions(pass, batch);
    set_features(pass, batch);
    batch.num_positions = num_positions_[sequences.front()];
    attention_.begin_pass(sequences);
    const at::Tensor hidden_LD = decoder_.hidden_states(batch, at::tensor(last_rows, at::kLong));
    auto read = tokens.begin();
    for (size_t i = 0; i < sequences.size(); read += documents[i++].length) {
      std::vector<int32_t>& all = tokens_[sequences[i]];
      all.insert(all.end(), read, read + documents[i].length);
    }
    if (!last_rows.empty()) logits.push_back(logits_of(hidden_LD, head_VD_));
  }
  return logits.size() == 1 ? logits[0] : at::cat(logits);
}

}  // namespace longspan
