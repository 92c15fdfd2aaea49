#include "longspan/generation/prompt_pictures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace longspan {
namespace {

std::vector<int64_t> features_in(const Sample& prompt) {
  const auto column = prompt.columns.find(kFeatureColumn);
  if (column == prompt.columns.end() || prompt.pictures.empty()) return {};
  const at::Tensor values = column->second.values.contiguous();
  const auto* const data = values.const_data_ptr<int64_t>();
  return {data, data + values.numel()};
}

}  // namespace

PromptPictures::PromptPictures(const ModelSpec& model, const std::vector<NamedTensor>& parameters,
                               FramePatches patches)
    : tower_(*model.vision, parameters, {.compute_dtype = parameters.front().tensor.scalar_type()}),
      patches_(std::move(patches)) {}

at::Tensor PromptPictures::features_of(const Picture& picture) {
  const std::vector<PictureGrid> frames(static_cast<size_t>(picture.grid.t),
                                        {.t = 1, .h = picture.grid.h, .w = picture.grid.w});
  return tower_.features(
      [this, &picture](size_t begin, size_t end) {
        std::vector<at::Tensor> patches;
        for (size_t t = begin; t < end; ++t) {
          patches.push_back(patches_(picture, static_cast<int64_t>(t)));
        }
        return at::cat(patches);
      },
      frames);
}

at::Tensor PromptPictures::of(const Batch& /*row*/) { return of_pass_FE_; }

void SequencePictures::begin(const Sample& prompt, PromptPictures* pictures) {
  TORCH_CHECK(prompt.pictures.empty() || pictures != nullptr,
              "a prompt with pictures, and a model without a vision tower");
  const auto same = std::ranges::mismatch(pictures_, prompt.pictures).in1 - pictures_.begin();
  int64_t num_kept = 0;
  for (auto picture = pictures_.begin(); picture != pictures_.begin() + same; ++picture) {
    num_kept += picture->num_features;
  }
  std::vector<at::Tensor> features;
  if (num_kept > 0) features.push_back(features_FE_.narrow(0, 0, num_kept));
  for (size_t i = static_cast<size_t>(same); i < prompt.pictures.size(); ++i) {
    features.push_back(pictures->features_of(prompt.pictures[i]));
  }
  features_FE_ = features.empty() ? at::Tensor() : at::cat(features);
  pictures_ = prompt.pictures;
  features_ = features_in(prompt);
  spans_ = two_way_spans(prompt);
  positions_AT_ = prompt.positions_AT;
  behind_ = positions_AT_.defined() ? positions_AT_.max().item<int64_t>() + 1
                                    : std::ssize(prompt.input_ids);
}

int64_t SequencePictures::common(const Sample& prompt, int64_t same_ids) const {
  const auto same = std::ranges::mismatch(pictures_, prompt.pictures).in1 - pictures_.begin();
  int64_t num_common = 0;
  for (int64_t i = 0; i < same; ++i) num_common += pictures_[static_cast<size_t>(i)].num_features;
  const std::vector<int64_t> others = features_in(prompt);
  // The cached keys of a two-way span are those of the whole span.
  const auto before_span = [this](int64_t token) {
    for (const TwoWaySpan& span : spans_) {
      if (span.begin < token && span.end > token) return span.begin;
    }
    return token;
  };
  for (int64_t token = 0; token < same_ids; ++token) {
    const int64_t own = feature(token),
                  other = others.empty() ? -1 : others[static_cast<size_t>(token)];
    if (own != other || own >= num_common) return before_span(token);
  }
  return before_span(same_ids);
}

std::vector<TwoWaySpan> SequencePictures::spans_in(int64_t begin, int64_t end) const {
  std::vector<TwoWaySpan> inside;
  for (const TwoWaySpan& span : spans_) {
    if (span.end <= begin || span.begin >= end) continue;
    if (span.begin < begin || span.end > end) {
      throw std::logic_error("a pass with a part of a two-way span");
    }
    inside.push_back({span.begin - begin, span.end - begin});
  }
  return inside;
}

int64_t SequencePictures::whole_spans_end(int64_t begin, int64_t end) const {
  for (const TwoWaySpan& span : spans_) {
    if (span.begin < end && span.end > end) return span.begin > begin ? span.begin : span.end;
  }
  return end;
}

int64_t SequencePictures::position(int64_t axis, int64_t token) const {
  if (!positions_AT_.defined()) return token;
  const int64_t num_tokens = positions_AT_.size(1);
  return token < num_tokens ? positions_AT_[axis][token].item<int64_t>()
                            : behind_ + token - num_tokens;
}

}  // namespace longspan
