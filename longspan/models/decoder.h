// The decoder: single-device code. Its inputs include an Attention and, as data, positions. T:
// tokens, D: model dim, V: vocabulary, L: label positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/kernels/linear_cross_entropy.h"
#include "longspan/kernels/linear_divergence.h"
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
  /// fp32 or bf16; fp64 parameters always compute in fp64. With bf16, gemms and attention have bf16
  /// inputs (parameters are cast at use); norms, rotation, softmax and loss compute in fp32. Hidden
  /// states between layers, parameters and gradients have the parameters' dtype. With fp32
  /// parameters, bf16 therefore acts like torch.autocast (LLaMA-Factory's `bf16: true`); with bf16
  /// parameters, like LLaMA-Factory's `pure_bf16: true`.
  at::ScalarType compute_dtype = at::kFloat;
  /// Number of chunks of tokens for each MLP, in forward and backward. With chunks, gate and up are
  /// not saved. 0: the chunk size is chosen automatically, and gate and up are saved without
  /// checkpointing.
  int64_t mlp_tiles = 0;
  /// Stores the tensors that checkpointing saves; null: these tensors stay on the device. Must
  /// outlive the decoder.
  ActivationStore* activation_store = nullptr;
  /// Gives access to the experts whose parameters this process does not have; null: this process
  /// has all experts. Must outlive the decoder and its graphs.
  ExpertExchange* expert_exchange = nullptr;
  /// Computes the features of pictures; null: rows have no pictures. Must outlive the decoder.
  PictureFeatures* pictures = nullptr;
  /// For LoRA adapters among the parameters (models/lora.h).
  double lora_scale = 0.0, lora_dropout = 0.0;
  /// In passes with a dropout seed: noise on the embedding, uniform within neftune_alpha /
  /// sqrt(tokens of the example x hidden size) (NEFTune, arXiv 2310.05914).
  double neftune_alpha = 0.0;
  /// Called around every use of parameters; null: none. Must outlive the decoder and its graphs.
  /// Between uses, values may be absent (tensors without memory). The dtype of a gradient may
  /// differ from its parameter's dtype.
  ParameterHooks* parameter_hooks = nullptr;
  /// Runs each layer's plain version (ATen operators and autograd's own gradients), for comparisons
  /// on one process and a few tokens. The plain version uses only the dtype and the adapters of the
  /// options above.
  bool plain_layers = false;
  /// Called with each layer and its index during construction. May replace parts of the layer by
  /// other code over the same parameters, for comparisons or for kinds of layers without a spec.
  std::function<void(Layer& layer, int64_t number)> change_layer = {};
};

class Decoder {
 public:
  /// Takes parameters by Hugging Face name (leaf tensors; requires_grad selects the trained ones).
  /// Adapter matrices (<layer>.lora_A.weight, .lora_B.weight) belong to their layers. Parameters
  /// with unknown names stay in parameters() and are not used. `attention` must outlive the decoder
  /// and the graphs of its results. A backward pass accumulates directly into the parameters'
  /// .grad. torch::autograd::grad() therefore does not return gradients of parameters, and threads
  /// must not share parameters.
  Decoder(const ModelSpec& spec, std::vector<NamedTensor> parameters, Attention& attention,
          const DecoderOptions& options);
  ~Decoder();

  const std::vector<NamedTensor>& parameters() const;

  /// Returns the final hidden states (after the last norm), [T, D].
  at::Tensor hidden_states(const Batch& batch);
  /// Returns the final hidden states of the tokens rows_L (int64 indices) only, [L, D].
  at::Tensor hidden_states(const Batch& batch, const at::Tensor& rows_L);
  /// Returns the full logits [T, V] in fp32. For tests and small rows; training never computes full
  /// logits.
  at::Tensor logits(const Batch& batch);
  /// Returns log p of each label, [L] fp64, for the positions whose label is not kIgnoreLabel, in
  /// order. Head and softmax are fused and chunked: at most chunk x V logits exist at once.
  at::Tensor token_logprobs(const Batch& batch);
  /// As token_logprobs(), at a temperature, with the entropies of the softmax if requested. No
  /// model has a bias or a softcap on its logits.
  TokenScores token_scores(const Batch& batch, const TokenScoreOptions& options);
  /// Returns the final hidden states of the positions with a label, and the head, without
  /// gradients: this model as a teacher. The pass has neither dropout nor noise, and counts no
  /// experts. The decoder must outlive the result, and the autograd graphs of divergence_from()
  /// with this result.
  TeacherHead teacher_head(const Batch& batch);
  /// Returns the divergence of this model (the student) and a teacher at each position with a
  /// label, [L] fp64, in order (kernels/linear_divergence.h). Differentiable in this model's
  /// parameters. `teacher`: teacher_head() for the same batch, of another decoder with an equal
  /// vocabulary, or of this decoder's base model, then without hooks.
  at::Tensor divergence_from(const TeacherHead& teacher, const Batch& batch,
                             const DivergenceOptions& options);
  /// Returns token_logprobs() and divergence_from() of one pass, as two rows, [2, L]. `visit`, if
  /// set, is called with the chunks of logits, and the factors are not used; without gradients
  /// only.
  at::Tensor logprobs_and_divergences(const TeacherHead& teacher, const Batch& batch,
                                      const DivergenceOptions& options,
                                      const LossFactors& visit = {});
  /// Returns the sum of -log p over the labels, a scalar in fp64. Equals -token_logprobs().sum(),
  /// but computes the gradient in the forward pass, so the logits are computed once. `upstream`: d
  /// loss / d sum, if known in advance; the backward must then pass this value. The head's gradient
  /// is then accumulated directly into the gradient of earlier rows, without a second buffer
  /// (kernels/linear_cross_entropy.h). `factors`: multiply the terms of the sum; none: 1.
  at::Tensor negative_log_likelihood_sum(const Batch& batch,
                                         std::optional<double> upstream = std::nullopt,
                                         const LossFactors& factors = {});

  /// Throws UserError if a token or label is outside the vocabulary. The functions above check only
  /// batches on the CPU, because a check of a batch on a GPU would make the host wait.
  void check_ids(const Batch& batch) const;
  /// With gradient checkpointing, the last `count` layers whose feed-forward saves tensors keep
  /// these tensors on the device from the forward to the backward. The backward then does not
  /// recompute the kept tensors. Default: 0.
  void keep_feed_forwards(int64_t count);
  /// Sets the attention of later passes, which must outlive their graphs.
  void use_attention(Attention& attention);
  /// Switches between the model with adapters (the default) and the base model. Must not be called
  /// between a forward pass and its backward.
  void use_adapters(bool on);
  /// Sets the seed of the dropout on the adapters' inputs, and of the noise on the embedding;
  /// nullopt (the default): neither dropout nor noise.
  void set_dropout_seed(std::optional<uint64_t> seed);
  std::optional<uint64_t> dropout_seed() const;
  /// Makes mixtures of experts count the tokens of each expert in `load`, without padding. The
  /// backwards read `load`. Null (the default): off. If `load` asks for sums of scores, the last
  /// layer's feed-forward computes all tokens, not only the requested tokens. `load` must outlive
  /// the graphs of later passes.
  void count_experts(ExpertLoad* load);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
