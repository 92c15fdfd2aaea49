// A decoder that goes on where it stopped: it remembers what it has read of several sequences.
// E: extensions of a call, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/generation/cached_attention.h"
#include "longspan/models/decoder.h"

namespace longspan {

class CachedDecoder {
 public:
  /// Parameters in the dtype of computation (fp32, bf16; fp64 for tests), on the CPU.
  /// `max_length`: the most tokens of a sequence (max_position_embeddings).
  CachedDecoder(const ModelSpec& spec, std::vector<NamedTensor> parameters, int64_t num_sequences,
                int64_t max_length);

  /// The next tokens of a sequence, at least one.
  struct Extension {
    int64_t sequence;
    std::vector<int32_t> tokens;
  };
  /// Reads the wanted tokens, each sequence once at most -> logits of what follows the last token
  /// of each, [E, V] fp32 (fp64 for fp64 models). Long texts are read in chunks; before each,
  /// `go_on` is asked, and where it says no the result is undefined: what was read until then is
  /// remembered. A sequence whose length makes its rotations others (RopeScaling::is_long) is read
  /// anew.
  at::Tensor extend(
      const std::vector<Extension>& wanted,
      const std::function<bool()>& go_on = [] { return true; });

  int64_t num_sequences() const { return std::ssize(tokens_); }
  /// What a sequence holds.
  const std::vector<int32_t>& tokens(int64_t sequence) const { return tokens_[sequence]; }
  /// Forgets a sequence's tokens from `length` on; where the model has layers with a recurrence,
  /// whose states do not go back, all of them.
  void truncate(int64_t sequence, int64_t length);
  /// How long a sequence may become.
  int64_t max_length() const { return max_length_; }

  /// Tokens of a chunk.
  static constexpr int64_t kChunkTokens = 512;

 private:
  /// Are the rotations of rows with so many positions the same?
  bool turn_alike(int64_t one, int64_t other) const;
  /// With all tokens of sequences whose keys are turned otherwise than what they will be; these are
  /// forgotten.
  std::vector<Extension> with_what_turns_otherwise(std::vector<Extension> extensions);

  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int64_t> num_positions_;  // by which a sequence's keys are turned
  std::vector<RopeScaling> scalings_;
  int64_t max_length_;
  bool states_go_back_;
  CachedAttention attention_;
  Decoder decoder_;
  at::Tensor head_VD_;
};

}  // namespace longspan
