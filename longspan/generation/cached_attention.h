// Attention with a key-value cache. Each forward pass brings new tokens of some sequences, which
// attend to all earlier tokens of their sequences. T: new tokens, N: query heads, M: kv heads, H:
// numbers in a head, S: sequences, C: capacity of a sequence in tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/attention/recurrent_memory.h"

namespace longspan {

/// For decoders without gradients, whose layers of softmax attention call attend() in order. Also
/// holds the states of the recurrent layers.
class CachedAttention : public Attention, private RecurrentMemory {
 public:
  /// `kernel` must outlive this object. The cache grows with the tokens, by kRoomStep tokens or by
  /// half.
  CachedAttention(const BlockKernel& kernel, int64_t num_layers, int64_t num_recurrences,
                  int64_t num_sequences);

  /// Begins a forward pass whose document i has the next tokens of sequence sequences[i]. No
  /// sequence may come twice.
  void begin_pass(std::vector<int64_t> sequences);
  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint = {}) override;

  /// Cached tokens of a sequence.
  int64_t length(int64_t sequence) const { return lengths_[sequence]; }
  /// Forgets tokens of a sequence from `length` on. Recurrent states cannot go back: in models with
  /// recurrences, `length` must be 0 or the current length.
  void truncate(int64_t sequence, int64_t length);

  std::shared_ptr<const WholeRow> whole_row(const Packing& /*packing*/) const override {
    return nullptr;
  }
  RecurrentMemory* memory() override { return this; }

  static constexpr int64_t kRoomStep = 256;

 private:
  struct Layer {
    at::Tensor k_MSCH, v_MSCH;
  };
  void begin_layer() override;
  CarriedStates& of_document(int64_t document) override;
  /// Grows the cache to `length` tokens of the heads of x_TMH.
  void make_room(at::Tensor& cache_MSCH, const at::Tensor& x_TMH, int64_t length) const;

  const BlockKernel& kernel_;
  std::vector<Layer> layers_;
  std::vector<std::vector<CarriedStates>> recurrences_;  // by layer, by sequence
  std::vector<int64_t> lengths_;
  std::vector<int64_t> sequences_;  // in this pass
  size_t next_layer_ = 0, next_recurrence_ = 0;
};

}  // namespace longspan
