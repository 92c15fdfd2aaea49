// Attention that remembers keys and values: each forward pass brings new tokens of some sequences,
// which attend to all that these sequences had before. T: new tokens, N: query heads, M: kv heads,
// H: numbers in a head, S: sequences, C: tokens of a sequence that there is room for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/attention/recurrent_memory.h"

namespace longspan {

/// For decoders without gradients that call attend() once a layer of softmax attention, in the
/// order of the layers. It also holds the states of the other layers, which have recurrences.
class CachedAttention : public Attention, private RecurrentMemory {
 public:
  /// `kernel` must outlive it. Memory is taken as tokens come, in steps of kRoomStep tokens or half
  /// of what there is.
  CachedAttention(const BlockKernel& kernel, int64_t num_layers, int64_t num_recurrences,
                  int64_t num_sequences);

  /// Before a forward pass: its document i holds the next tokens of sequence sequences[i]. A
  /// sequence comes once at most.
  void begin_pass(std::vector<int64_t> sequences);
  at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                    const AttentionSpec& spec, const Packing& packing,
                    const at::Tensor& sinks_N = {}) override;

  /// Tokens of a sequence that are remembered.
  int64_t length(int64_t sequence) const { return lengths_[sequence]; }
  /// Forgets all tokens of a sequence from `length` on. States do not go back: where layers have
  /// recurrences, `length` is 0 or what it was.
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
  /// For `length` tokens of the heads of x_TMH.
  void make_room(at::Tensor& cache_MSCH, const at::Tensor& x_TMH, int64_t length) const;

  const BlockKernel& kernel_;
  std::vector<Layer> layers_;
  std::vector<std::vector<CarriedStates>> recurrences_;  // of each layer, of each sequence
  std::vector<int64_t> lengths_;
  std::vector<int64_t> sequences_;  // of this pass
  size_t next_layer_ = 0, next_recurrence_ = 0;
};

}  // namespace longspan
