// A decoder with a cache for several sequences. E: extensions of a call, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "longspan/generation/cached_attention.h"
#include "longspan/generation/prompt_pictures.h"
#include "longspan/models/decoder.h"

namespace longspan {

class CachedDecoder {
 public:
  /// `parameters`: in the dtype of computation (fp32 or bf16; fp64 for tests), on the CPU.
  /// `max_length`: the most tokens of a sequence (max_position_embeddings).
  /// `patches`: reads the pixels of prompts' pictures; only for a model with a tower.
  CachedDecoder(const ModelSpec& spec, std::vector<NamedTensor> parameters, int64_t num_sequences,
                int64_t max_length, FramePatches patches = {});

  /// Begins a prompt, with its pictures, in a sequence. Keeps the common prefix of the cached
  /// tokens and the prompt, without the prompt's last token, whose logits are needed; forgets all
  /// other tokens. Returns the prompt's tokens that are still to be read. Throws UserError where
  /// pixels cannot be read.
  std::vector<int32_t> begin(int64_t sequence, const Sample& prompt);

  /// The next tokens of a sequence, at least one.
  struct Extension {
    int64_t sequence;
    std::vector<int32_t> tokens;
  };
  /// Reads the next tokens of sequences, each sequence at most once. Returns the logits after each
  /// extension's last token, [E, V] in fp32 (fp64 for fp64 models). Reads long texts in chunks, and
  /// calls `go_on` before each chunk. Where `go_on` returns false, extend() returns an undefined
  /// tensor; tokens read so far stay cached. If the new length of a sequence changes its rotations
  /// (RopeScaling::is_long), all its tokens are read again.
  at::Tensor extend(
      const std::vector<Extension>& wanted,
      const std::function<bool()>& go_on = [] { return true; });

  int64_t num_sequences() const { return std::ssize(tokens_); }
  /// Cached tokens of a sequence.
  const std::vector<int32_t>& tokens(int64_t sequence) const { return tokens_[sequence]; }
  /// Forgets a sequence's tokens from `length` on. In models with recurrent layers, whose states
  /// cannot go back, forgets all tokens.
  void truncate(int64_t sequence, int64_t length);
  /// The most tokens of a sequence.
  int64_t max_length() const { return max_length_; }

  /// Tokens of a chunk.
  static constexpr int64_t kChunkTokens = 512;

 private:
  /// Whether rows with these numbers of positions have the same rotations.
  bool turn_alike(int64_t one, int64_t other) const;
  /// If the cached keys of a sequence need other rotations, prepends all cached tokens to the
  /// sequence's extension, and forgets them in the cache.
  std::vector<Extension> with_what_turns_otherwise(std::vector<Extension> extensions);

  /// The tokens of a pass: for each token its sequence, and its index in the sequence.
  struct PassTokens {
    std::vector<int64_t> sequences, places;
  };
  void set_positions(const PassTokens& pass, Batch& batch) const;
  void set_features(const PassTokens& pass, Batch& batch);

  std::vector<std::vector<int32_t>> tokens_;
  std::vector<SequencePictures> pictures_;
  std::vector<int64_t> num_positions_;  // the length for which a sequence's keys are rotated
  std::vector<RopeScaling> scalings_;
  int64_t max_length_;
  bool states_go_back_;
  CachedAttention attention_;
  std::unique_ptr<PromptPictures> tower_;  // null: the model takes no pictures
  Decoder decoder_;
  at::Tensor head_VD_;
};

}  // namespace longspan
