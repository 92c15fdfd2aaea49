// The logits of heads, one chunk of label positions at a time. L: label positions, D: model dim, V:
// vocabulary, C: rows of a chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace longspan {

/// Most bytes of logits in memory, for tests; empty: chosen for the device (spec/device_sizes.h).
using ChunkBytes = std::optional<int64_t>;

/// A head and its inputs: logits = softcap tanh(hidden W^T / softcap) / temperature, or without a
/// softcap hidden W^T / temperature.
struct HeadInput {
  at::Tensor hidden_LD, weight_VD;
  double temperature = 1.0;
  std::optional<double> softcap = {};
};

/// The chunks of one head, or of several heads. With several heads, the logits of all heads exist
/// together for each chunk of rows. The logits of all heads share `chunk_bytes`.
class HeadChunks {
 public:
  /// Casts each weight to the dtype of its hidden states. Heads have the same L, V and device, and
  /// logits of one dtype (fp32, or fp64 for fp64).
  HeadChunks(std::vector<HeadInput> heads, ChunkBytes chunk_bytes);

  int64_t num_chunks() const;
  /// The head with its weight as the gemms read it.
  const HeadInput& head(size_t i = 0) const { return heads_[i]; }

  /// Body(begin, size, logits): one [C, V] tensor for each head. The body may overwrite logits.
  using Body = std::function<void(int64_t begin, int64_t size, std::vector<at::Tensor>& logits)>;
  void for_each(const Body& body) const;

  /// Calls work(begin, size) for parts of a chunk's rows. The fp64 tensors of a part are small: a
  /// few of these tensors take less memory than the chunk's logits.
  void for_parts(int64_t num_rows, const std::function<void(int64_t, int64_t)>& work) const;

 private:
  std::vector<HeadInput> heads_;
  int64_t rows_;  // of a chunk
};

/// For one chunk: dhidden = dlogits W, and dweight += dweight_scale dlogits^T hidden, each where
/// defined. dlogits has the dtype of the hidden states.
void add_head_gradients(const at::Tensor& dlogits_CV, const at::Tensor& hidden_CD,
                        const at::Tensor& weight_VD, at::Tensor dhidden_CD,
                        const at::Tensor& dweight_VD, double dweight_scale = 1.0);

}  // namespace longspan
