#include "longspan/models/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <utility>

#include "longspan/config/user_error.h"
#include "longspan/models/decoder_block.h"
#include "longspan/models/embedding.h"
#include "longspan/models/fused_op.h"
#include "longspan/models/linear_cross_entropy.h"
#include "longspan/models/rope.h"

namespace longspan {
namespace {

struct Weights {
  at::Tensor embedding, final_norm, head;
  std::vector<BlockWeights> blocks;
};

Weights take_weights(const ModelConfig& config, const std::vector<NamedTensor>& parameters,
                     double lora_scale) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) by_name[name] = tensor;
  const auto optional = [&](const std::string& name) {
    const auto found = by_name.find(name);
    return found == by_name.end() ? at::Tensor() : found->second;
  };
  const auto linear = [&](const std::string& name) {
    return Linear{by_name.at(name + ".weight"), optional(name + ".bias"),
                  optional(name + ".lora_A.weight"), optional(name + ".lora_B.weight"), lora_scale};
  };
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const auto found = by_name.find(name);
    TORCH_CHECK(found != by_name.end(), "parameter ", name, " is missing");
    TORCH_CHECK(found->second.sizes() == at::IntArrayRef(shape), "parameter ", name, " has shape ",
                found->second.sizes(), ", not ", at::IntArrayRef(shape));
  }
  Weights weights;
  weights.embedding = by_name.at("model.embed_tokens.weight");
  weights.final_norm = by_name.at("model.norm.weight");
  weights.head = config.tie_word_embeddings ? weights.embedding : by_name.at("lm_head.weight");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    weights.blocks.push_back(
        {by_name.at(prefix + "input_layernorm.weight"),
         by_name.at(prefix + "post_attention_layernorm.weight"),
         linear(prefix + "self_attn.q_proj"), linear(prefix + "self_attn.k_proj"),
         linear(prefix + "self_attn.v_proj"), linear(prefix + "self_attn.o_proj"),
         linear(prefix + "mlp.gate_proj"), linear(prefix + "mlp.up_proj"),
         linear(prefix + "mlp.down_proj"), optional(prefix + "self_attn.q_norm.weight"),
         optional(prefix + "self_attn.k_norm.weight")});
  }
  return weights;
}

std::vector<Linear*> linears_of(BlockWeights& block) {
  return {&block.q_proj,    &block.k_proj,  &block.v_proj,   &block.o_proj,
          &block.gate_proj, &block.up_proj, &block.down_proj};
}

/// Without adapters; shares everything else.
std::vector<BlockWeights> base_of(std::vector<BlockWeights> blocks) {
  for (BlockWeights& block : blocks) {
    for (Linear* layer : linears_of(block)) layer->lora_a = layer->lora_b = at::Tensor();
  }
  return blocks;
}

/// With dropout for a row's tokens; `rows_L` as in block().
BlockWeights with_dropout(BlockWeights block, const Dropout& dropout, const at::Tensor& rows_L) {
  uint64_t number = 0;
  for (Linear* layer : linears_of(block)) {
    layer->dropout = dropout;
    layer->dropout.seed = mix_seed(dropout.seed, number++);
  }
  if (rows_L.defined()) {  // the MLP gets these alone
    for (Linear* layer : {&block.gate_proj, &block.up_proj, &block.down_proj}) {
      *layer = layer->for_rows(rows_L);
    }
  }
  return block;
}

using Use = ParameterHooks::Use;

/// The use of parameters that a backward comes to next.
struct NextUse {
  int unit;
  Use use;
  int next;  // after that
};

/// Identity; its backward calls hooks->after(above), unless above is kAlwaysThere, and then
/// hooks->before(below).
at::Tensor between_units(const at::Tensor& x, ParameterHooks* hooks, int above, NextUse below) {
  if (hooks == nullptr || !needs_backward({x}, {})) return x;
  return attach_backward({x.detach()}, {x}, {},
                         [hooks, above, below](std::vector<at::Tensor> gradients) {
                           if (above != kAlwaysThere) hooks->after(above, Use::kBackward);
                           hooks->before(below.unit, below.use, below.next);
                           return gradients;
                         })[0];
}

}  // namespace

struct Decoder::Impl {
  ModelConfig config;
  std::vector<NamedTensor> parameters;
  Attention* attention;
  DecoderOptions options;
  Weights weights;
  std::vector<BlockWeights> base_blocks;  // of `weights`, without adapters
  bool adapters_on = true;
  std::optional<uint64_t> dropout_seed;
  RotaryFrequencies frequencies;
  at::ScalarType residual_dtype;

  /// Hidden states before the last norm: of all tokens, or of `rows_L` where defined. `then`: the
  /// unit that is used after the blocks, or kAlwaysThere.
  at::Tensor run_blocks(const Batch& batch, const at::Tensor& rows_L, int then);
  at::Tensor final_norm(const at::Tensor& h_LD) {
    return rms_norm(h_LD, weights.final_norm, config.rms_norm_eps, options.compute_dtype);
  }
  /// Hidden states that predict a label, after the last norm, [L, D], and those labels, [L].
  std::pair<at::Tensor, at::Tensor> label_states(const Batch& batch);
  /// Runs head(hidden). `backward`: what its backward does with the head's weight.
  template <typename Head>
  at::Tensor with_head(const at::Tensor& hidden, Use backward, Head&& head);
  /// Tells the hooks that the head's gradient is made from here on. Returns whether they made a
  /// gradient of zeros.
  bool open_head_gradient(const at::Tensor& hidden);
  void before(int unit, int next) {
    if (options.parameter_hooks) options.parameter_hooks->before(unit, Use::kForward, next);
  }
  void after(int unit) {
    if (options.parameter_hooks) options.parameter_hooks->after(unit, Use::kForward);
  }
  void check_ids(const at::Tensor& ids, const char* what) const;
};

Decoder::Decoder(const ModelConfig& config, std::vector<NamedTensor> parameters,
                 Attention& attention, const DecoderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->config = config;
  impl_->weights = take_weights(config, parameters, options.lora_scale);
  impl_->base_blocks = base_of(impl_->weights.blocks);
  impl_->attention = &attention;
  impl_->options = options;
  impl_->frequencies = rotary_frequencies(config);
  const auto parameter_dtype = impl_->weights.embedding.scalar_type();
  if (parameter_dtype == at::kDouble) impl_->options.compute_dtype = at::kDouble;
  impl_->residual_dtype = c10::promoteTypes(parameter_dtype, impl_->options.compute_dtype);
  impl_->parameters = std::move(parameters);
}

Decoder::~Decoder() = default;

const std::vector<NamedTensor>& Decoder::parameters() const { return impl_->parameters; }

void Decoder::Impl::check_ids(const at::Tensor& ids, const char* what) const {
  if (ids.numel() == 0 || !ids.is_cpu()) return;
  const auto [lowest, highest] = at::aminmax(ids);
  for (const int64_t id : {lowest.item<int64_t>(), highest.item<int64_t>()}) {
    if (id < 0 || id >= config.vocab_size) {
      throw UserError(fmt::format(
          "{} {} is outside of the model's vocabulary of {}. The tokenizer and the model do not "
          "belong together.",
          what, id, config.vocab_size));
    }
  }
}

at::Tensor Decoder::Impl::run_blocks(const Batch& batch, const at::Tensor& rows_L, int then) {
  check_ids(batch.tokens_T, "Token");
  const RowContext row{attention,
                       batch.packing,
                       rotary_table(frequencies, batch.positions_T, options.compute_dtype),
                       config.num_heads,
                       config.num_kv_heads,
                       config.head_dim,
                       config.rms_norm_eps,
                       options.compute_dtype,
                       options.mlp_tiles,
                       options.activation_store};
  ParameterHooks* const hooks = options.parameter_hooks;
  before(kEmbeddingUnit, /*next=*/1);
  auto h_TD = embed(weights.embedding, batch.tokens_T, residual_dtype, config.padding_token);
  after(kEmbeddingUnit);
  h_TD = between_units(h_TD, hooks, /*above=*/1, {kEmbeddingUnit, Use::kGradients, /*next=*/-1});
  const std::vector<BlockWeights>& blocks = adapters_on ? weights.blocks : base_blocks;
  const bool drops = adapters_on && dropout_seed && options.lora_dropout > 0;
  const at::Tensor keys_T = drops ? token_keys(batch) : at::Tensor();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int unit = static_cast<int>(i) + 1;
    const bool last = i + 1 == blocks.size();
    const int above = last ? then : unit + 1;
    // The backward goes on below only if something is trained there.
    const int below = unit > 1 && h_TD.requires_grad() ? unit - 1 : -1;
    before(unit, above);
    // Nothing reads the last block's other rows.
    const at::Tensor rows = last ? rows_L : at::Tensor();
    const BlockWeights block_weights =
        drops ? with_dropout(blocks[i], {options.lora_dropout, mix_seed(*dropout_seed, i), keys_T},
                             rows)
              : blocks[i];
    h_TD = options.gradient_checkpointing ? checkpointed_block(h_TD, block_weights, row, rows)
                                          : block(h_TD, block_weights, row, rows);
    after(unit);
    h_TD = between_units(h_TD, hooks, above, {unit, Use::kBackward, below});
  }
  return h_TD;
}

std::pair<at::Tensor, at::Tensor> Decoder::Impl::label_states(const Batch& batch) {
  const auto rows_L = batch.labels_T.ne(kIgnoreLabel).nonzero().squeeze(1);
  const auto labels_L = batch.labels_T.index_select(0, rows_L);
  check_ids(labels_L, "Label");
  return {final_norm(run_blocks(batch, rows_L, head_unit(config))), labels_L};
}

template <typename Head>
at::Tensor Decoder::Impl::with_head(const at::Tensor& hidden, Use backward, Head&& head) {
  const int unit = head_unit(config);
  before(unit, /*next=*/-1);
  const at::Tensor result = head(hidden);
  // Do not release a unit whose weights the backward will read.
  if (!result.requires_grad() || backward == Use::kGradients) after(unit);
  const int below = hidden.requires_grad() ? static_cast<int>(config.num_layers) : -1;
  return between_units(result, options.parameter_hooks, kAlwaysThere, {unit, backward, below});
}

bool Decoder::Impl::open_head_gradient(const at::Tensor& hidden) {
  const bool was_there = weights.head.grad().defined();
  if (options.parameter_hooks == nullptr || was_there || !weights.head.requires_grad() ||
      !needs_backward({hidden}, {weights.head})) {
    return false;
  }
  options.parameter_hooks->before(head_unit(config), Use::kGradients, /*next=*/-1);
  return weights.head.grad().defined();
}

at::Tensor Decoder::hidden_states(const Batch& batch) {
  return impl_->final_norm(impl_->run_blocks(batch, {}, kAlwaysThere));
}

at::Tensor Decoder::hidden_states(const Batch& batch, const at::Tensor& rows_L) {
  return impl_->final_norm(impl_->run_blocks(batch, rows_L, kAlwaysThere));
}

void Decoder::use_adapters(bool on) { impl_->adapters_on = on; }

void Decoder::set_dropout_seed(std::optional<uint64_t> seed) { impl_->dropout_seed = seed; }

std::optional<uint64_t> Decoder::dropout_seed() const { return impl_->dropout_seed; }

at::Tensor Decoder::logits(const Batch& batch) {
  const auto hidden_TD = impl_->final_norm(impl_->run_blocks(batch, {}, head_unit(impl_->config)));
  const auto logits_TV = impl_->with_head(hidden_TD, Use::kBackward, [&](const at::Tensor& hidden) {
    return at::linear(hidden, impl_->weights.head.to(hidden.scalar_type()));
  });
  return logits_TV.scalar_type() == at::kDouble ? logits_TV : logits_TV.to(at::kFloat);
}

at::Tensor Decoder::token_logprobs(const Batch& batch) {
  const auto [hidden_LD, labels_L] = impl_->label_states(batch);
  return impl_->with_head(hidden_LD, Use::kBackward,
                          [&, labels_L = labels_L](const at::Tensor& hidden) {
                            return linear_token_logprobs(hidden, impl_->weights.head, labels_L);
                          });
}

at::Tensor Decoder::negative_log_likelihood_sum(const Batch& batch,
                                                std::optional<double> upstream) {
  const auto [hidden_LD, labels_L] = impl_->label_states(batch);
  return impl_->with_head(
      hidden_LD, Use::kGradients, [&, labels_L = labels_L](const at::Tensor& hidden) {
        return linear_nll_sum(hidden, impl_->weights.head, labels_L, kHeadChunkBytes,
                              {upstream, impl_->open_head_gradient(hidden)});
      });
}

}  // namespace longspan
