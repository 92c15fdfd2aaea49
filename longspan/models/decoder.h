// The decoder: single-device code that takes an Attention and positions as data. T: tokens, D:
// model dim, V: vocabulary, L: label positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/layers/expert_exchange.h"
#include "longspan/layers/expert_load.h"
#include "longspan/memory/activation_store.h"
#include "longspan/models/picture_features.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/rows/batch.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Layer;

struct DecoderOptions {
  bool gradient_checkpointing = true;  // per layer; attention's output and log-sum-exp are saved
  /// fp32 or bf16; fp64 parameters always compute in fp64. With bf16, gemms and attention take bf16
  /// (parameters are cast at use); norms, rotation, softmax and loss compute in fp32. Hidden states
  /// between layers, parameters and gradients have the parameters' dtype. So fp32 parameters act
  /// like torch.autocast (`bf16: true` in LLaMA-Factory), and bf16 parameters like its `pure_bf16:
  /// true`.
  at::ScalarType compute_dtype = at::kFloat;
  /// Number of chunks of rows in which each MLP runs, forward and backward, without saving gate and
  /// up. 0: the chunk size is chosen automatically, and gate and up are saved without
  /// checkpointing.
  int64_t mlp_tiles = 0;
  /// Stores the tensors that checkpointing saves; null: they stay on the device. Must outlive the
  /// decoder.
  ActivationStore* activation_store = nullptr;
  /// Reaches the experts whose parameters are missing here; null: all experts are here. Must
  /// outlive the decoder and its graphs.
  ExpertExchange* expert_exchange = nullptr;
  /// Computes the features of pictures; null: rows have none. Must outlive the decoder.
  PictureFeatures* pictures = nullptr;
  /// For LoRA adapters among the parameters (models/lora.h).
  double lora_scale = 0.0, lora_dropout = 0.0;
  /// Called around every use of parameters; null: none. Must outlive the decoder and its graphs.
  /// Between uses, values may be absent (tensors without memory). Gradients may have another dtype
  /// than their parameter.
  ParameterHooks* parameter_hooks = nullptr;
  /// Runs each layer's plain version: ATen operators and autograd's own gradients. For comparisons,
  /// on one process and a few tokens. Of the options above, only the dtype and the adapters apply.
  bool plain_layers = false;
  /// Called with each layer and its index during construction. May replace parts of the layer by
  /// others over the same parameters: for comparisons, or for kinds of layers that no spec has.
  std::function<void(Layer& layer, int64_t number)> change_layer = {};
};

class Decoder {
 public:
  /// Takes parameters by Hugging Face name (leaf tensors; requires_grad selects the trained ones).
  /// Adapter matrices (<layer>.lora_A.weight, .lora_B.weight) belong to their layers. Unknown names
  /// stay in parameters() and are not used. `attention` must outlive the decoder and the graphs of
  /// its results. A backward pass accumulates into the parameters' .grad itself, so
  /// torch::autograd::grad() does not see them, and threads must not share parameters.
  Decoder(const ModelSpec& spec, std::vector<NamedTensor> parameters, Attention& attention,
          const DecoderOptions& options);
  ~Decoder();

  const std::vector<NamedTensor>& parameters() const;

  /// Returns the final hidden states (after the last norm), [T, D].
  at::Tensor hidden_states(const Batch& batch);
  /// The same for the rows rows_L (int64) only, [L, D].
  at::Tensor hidden_states(const Batch& batch, const at::Tensor& rows_L);
  /// Returns the full logits [T, V] in fp32. For tests and small rows; training never computes
  /// them.
  at::Tensor logits(const Batch& batch);
  /// Returns log p of each label, [L] fp64, for the positions whose label is not kIgnoreLabel, in
  /// order. Head and softmax are fused and chunked: at most chunk x V logits exist at once.
  at::Tensor token_logprobs(const Batch& batch);
  /// Returns the sum of -log p over the labels, a scalar in fp64. Equals -token_logprobs().sum(),
  /// but computes the gradient in the forward pass, so the logits are computed once. `upstream`: d
  /// loss / d sum, if it is known in advance; the backward must then pass this value. The head's
  /// gradient is then accumulated into that of earlier rows at once, without a second buffer
  /// (kernels/linear_cross_entropy.h).
  at::Tensor negative_log_likelihood_sum(const Batch& batch,
                                         std::optional<double> upstream = std::nullopt);

  /// Throws UserError if a token or label is outside the vocabulary. Passes check by themselves
  /// only batches on the CPU, since the host would have to wait for others.
  void check_ids(const Batch& batch) const;
  /// With gradient checkpointing, the last `count` layers whose feed-forward saves tensors keep
  /// them on the device from the forward to the backward, which then does not recompute them.
  /// Default: 0.
  void keep_feed_forwards(int64_t count);
  /// Switches between the model with adapters (the default) and the base model. Not between a
  /// forward pass and its backward.
  void use_adapters(bool on);
  /// Sets the seed of the dropout on the adapters' inputs; nullopt (the default): no dropout.
  void set_dropout_seed(std::optional<uint64_t> seed);
  std::optional<uint64_t> dropout_seed() const;
  /// Makes mixtures of experts count the tokens of each expert in `load`, without padding, and
  /// makes their backwards read it; null (the default): off. If sums of scores are wanted, the last
  /// layer's feed-forward computes all rows, not only the requested ones. `load` must outlive the
  /// graphs of later passes.
  void count_experts(ExpertLoad* load);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
