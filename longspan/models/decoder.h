// The decoder: single-device code that is handed an Attention and positions as data.
// T: tokens, D: model dim, V: vocabulary, L: label positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/data/batch.h"
#include "longspan/layers/activation_store.h"
#include "longspan/layers/expert_exchange.h"
#include "longspan/layers/expert_load.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Layer;

struct DecoderOptions {
  bool gradient_checkpointing = true;  // per layer; attention's out and lse are saved
  /// fp32 or bf16; fp64 parameters are always computed with in fp64. With bf16, gemms and
  /// attention take bf16 (parameters are cast at use) and norms, rotation, softmax and loss are
  /// computed in fp32. Hidden states between the layers, parameters and their gradients have the
  /// parameters' dtype: with fp32 parameters this is what torch.autocast does, and so `bf16: true`
  /// in LLaMA-Factory; with bf16 parameters it is its `pure_bf16: true`.
  at::ScalarType compute_dtype = at::kFloat;
  /// Parts of the row in which each MLP is computed, forward and backward, with gate and up never
  /// saved; 0: chunks of a size that is chosen, and gate and up saved without checkpointing.
  int64_t mlp_tiles = 0;
  /// Where what checkpointing saves goes; null: it stays on the device. Must outlive the decoder.
  ActivationStore* activation_store = nullptr;
  /// Where the experts are that are not here, whose parameters are then missing; null: all are
  /// here. Must outlive the decoder and its graphs.
  ExpertExchange* expert_exchange = nullptr;
  /// Of LoRA adapters, where parameters has them (models/lora.h).
  double lora_scale = 0.0, lora_dropout = 0.0;
  /// Told of every use of parameters, if given; outlives the decoder and its graphs. Values may be
  /// absent (tensors over memory that is not there) between uses, and gradients of another dtype
  /// than their parameter.
  ParameterHooks* parameter_hooks = nullptr;
  /// Computes each layer by its plain version, in ATen's operations with autograd's own gradients:
  /// for comparisons, on one process and a few tokens. Of the above it knows dtype and adapters.
  bool plain_layers = false;
  /// Sees each layer, with its number, as the decoder is made, and may put other parts in the place
  /// of its own, over the parameters that the spec lists: to compare, or to try kinds of layers
  /// that no spec names.
  std::function<void(Layer& layer, int64_t number)> change_layer = {};
};

class Decoder {
 public:
  /// Takes parameters by Hugging Face name (leaf tensors; requires_grad decides what is trained).
  /// Matrices of adapters (<layer>.lora_A.weight, .lora_B.weight) belong to their layers; names
  /// that the architecture does not know stay in parameters() and are otherwise left alone.
  /// `attention` must outlive the decoder and the graphs of its results. A backward pass adds to
  /// the parameters' .grad by itself, so torch::autograd::grad() knows nothing of them, and two
  /// threads must not share parameters.
  Decoder(const ModelSpec& spec, std::vector<NamedTensor> parameters, Attention& attention,
          const DecoderOptions& options);
  ~Decoder();

  const std::vector<NamedTensor>& parameters() const;

  /// Final hidden states (after the last norm), [T, D].
  at::Tensor hidden_states(const Batch& batch);
  /// The same for some rows alone, [L, D]; rows_L: int64.
  at::Tensor hidden_states(const Batch& batch, const at::Tensor& rows_L);
  /// Full logits [T, V] in fp32; for tests and small rows only, nothing in training makes them.
  at::Tensor logits(const Batch& batch);
  /// log p of each label, [L] fp64, for the positions whose label is not
  /// kIgnoreLabel, in order. Head and softmax are fused and chunked: at no time are more than chunk
  /// x V logits alive.
  at::Tensor token_logprobs(const Batch& batch);
  /// Sum of -log p over the labels, a scalar in fp64. Same as -token_logprobs().sum(), but its
  /// gradient is made in the forward pass, so that logits are computed once. `upstream`: d loss / d
  /// sum, where it is known; the backward must give it then. The head's gradient is added to that
  /// of earlier rows right away, and no second one is held (kernels/linear_cross_entropy.h).
  at::Tensor negative_log_likelihood_sum(const Batch& batch,
                                         std::optional<double> upstream = std::nullopt);

  /// Throws UserError where a token or a label of a batch is outside of the vocabulary. Passes look
  /// by themselves at batches that are on the host alone: a host would wait to see others.
  void check_ids(const Batch& batch) const;
  /// Under gradient checkpointing the last `count` of the layers whose feed-forward saves something
  /// keep it on the device from the forward to the backward, which does not compute it again. None
  /// do at the start.
  void keep_feed_forwards(int64_t count);
  /// With the adapters (as at the start), or the base model alone. Not between a forward pass and
  /// its backward.
  void use_adapters(bool on);
  /// From here on the adapters' inputs are dropped with this seed; nullopt (as at the start):
  /// never.
  void set_dropout_seed(std::optional<uint64_t> seed);
  std::optional<uint64_t> dropout_seed() const;
  /// From here on mixtures of experts count in `load` what goes where, of tokens that are no
  /// padding, and their backwards read it; null (as at the start): nowhere. Where sums of scores
  /// are wanted, the last layer's feed-forward sees all rows, and not only those that are asked
  /// for. `load` must outlive the graphs of what follows.
  void count_experts(ExpertLoad* load);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
