// The pictures of prompts: features by the model's vision tower. F: features, E: numbers of a
// feature.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/models/picture_features.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/rows/batch.h"
#include "longspan/spec/model_spec.h"
#include "longspan/vision/vision_tower.h"

namespace longspan {

/// Gives a decoder without gradients the features of the tokens of each pass.
class PromptPictures : public PictureFeatures {
 public:
  /// `model`: with a tower. `parameters`: include the tower's parameters, whose dtype is the dtype
  /// of computation.
  PromptPictures(const ModelSpec& model, const std::vector<NamedTensor>& parameters,
                 FramePatches patches);

  /// Returns the features of a picture or video, [F, E]. Throws UserError where its pixels cannot
  /// be read.
  at::Tensor features_of(const Picture& picture);
  /// Sets the result of of() from now on.
  void set(at::Tensor features_FE) { of_pass_FE_ = std::move(features_FE); }
  at::Tensor of(const Batch& row) override;
  void use_adapters(bool on) override { tower_.use_adapters(on); }

 private:
  VisionTower tower_;
  FramePatches patches_;
  at::Tensor of_pass_FE_;
};

/// The pictures of a sequence of a cached decoder.
class SequencePictures {
 public:
  /// Takes the pictures of a prompt (PictureRows::attach). Keeps the features of pictures with
  /// which the sequence already begins, and computes the others. `pictures`: null for a model
  /// without a tower.
  void begin(const Sample& prompt, PromptPictures* pictures);
  /// Returns the length of the common prefix of `prompt` and the sequence. `same_ids`: length of
  /// the common prefix of their token ids. Tokens of a picture are equal only if the pictures are
  /// equal.
  int64_t common(const Sample& prompt, int64_t same_ids) const;

  /// Returns the index of a token's feature, or -1.
  int64_t feature(int64_t token) const {
    return token < std::ssize(features_) ? features_[static_cast<size_t>(token)] : -1;
  }
  /// Returns the two-way spans of the prompt's tokens [begin, end), counted from `begin`. Throws
  /// std::logic_error if `begin` or `end` is inside of a span.
  std::vector<TwoWaySpan> spans_in(int64_t begin, int64_t end) const;
  /// Returns the end of a chunk of tokens [begin, end) that divides no two-way span: `end`, or the
  /// begin of the span that `end` divides, or the end of that span if the span begins at `begin`.
  int64_t whole_spans_end(int64_t begin, int64_t end) const;
  /// [F, E]; undefined: no pictures.
  const at::Tensor& all_features() const { return features_FE_; }
  bool has_axes() const { return positions_AT_.defined(); }
  /// Returns a token's position on an axis. Tokens after the prompt continue from the prompt's
  /// largest position.
  int64_t position(int64_t axis, int64_t token) const;

 private:
  std::vector<Picture> pictures_;
  std::vector<int64_t> features_;  // of each token of the prompt
  at::Tensor features_FE_, positions_AT_;
  std::vector<TwoWaySpan> spans_;  // of the prompt
  int64_t behind_ = 0;             // the position of the first token after the prompt
};

}  // namespace longspan
