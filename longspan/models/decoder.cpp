#include "longspan/models/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/embedding.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/kernels/rope.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/layers/adapters.h"
#include "longspan/layers/layer.h"
#include "longspan/layers/make_layer.h"
#include "longspan/models/embedding_noise.h"

namespace longspan {
namespace {

struct Weights {
  at::Tensor embedding, final_norm, head;
  std::vector<Layer> layers;
};

bool is_elsewhere(const ParameterSpec& parameter, const ExpertExchange* exchange) {
  if (exchange == nullptr || !parameter.expert) return false;
  const ExpertRange here = exchange->here(parameter.expert->count);
  return parameter.expert->number < here.begin || parameter.expert->number >= here.end;
}

Weights take_weights(const ModelSpec& spec, const std::vector<NamedTensor>& parameters,
                     const DecoderOptions& options) {
  TensorsByName by_name;
  for (const auto& [name, tensor] : parameters) by_name[name] = tensor;
  Weights weights;
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    const auto found = by_name.find(parameter.name);
    if (found == by_name.end() && is_elsewhere(parameter, options.expert_exchange)) continue;
    TORCH_CHECK(found != by_name.end(), "parameter ", parameter.name, " is missing");
    const at::Tensor& tensor = found->second;
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(parameter.shape), "parameter ", parameter.name,
                " has shape ", tensor.sizes(), ", not ", at::IntArrayRef(parameter.shape));
    if (parameter.layer || parameter.part != ModelPart::kLanguage) continue;
    if (parameter.role == ParameterRole::kEmbedding) weights.embedding = tensor;
    if (parameter.role == ParameterRole::kNorm) weights.final_norm = tensor;
    if (spec.is_head(parameter.role)) weights.head = tensor;
  }
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    weights.layers.push_back(
        make_layer(spec, layer, by_name, options.lora_scale, options.expert_exchange));
    if (options.change_layer) options.change_layer(weights.layers.back(), layer);
  }
  return weights;
}

using Use = ParameterHooks::Use;

/// The next use of parameters in the backward.
struct NextUse {
  int unit;
  Use use;
  int next;  // the unit after that
};

/// Identity. Its backward calls hooks->after(above), unless above is kAlwaysThere, and then
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

/// Features of pictures for the tokens `rows_F`; undefined: there are none.
struct RowFeatures {
  at::Tensor features_FE, rows_F;
  int64_t hidden_size;

  /// Returns the number of layers with features of their own.
  int64_t num_layers() const {
    return features_FE.defined() ? features_FE.size(1) / hidden_size - 1 : 0;
  }
  /// Returns part i in the dtype of h: 0 for the embedding, 1 + i for layer i.
  at::Tensor part(int64_t i, const at::Tensor& h_TD) const {
    return features_FE.narrow(1, i * hidden_size, hidden_size).to(h_TD.scalar_type());
  }
  /// Returns the embedding with the features in the places of their tokens.
  at::Tensor merged(const at::Tensor& h_TD) const {
    return features_FE.defined() ? h_TD.index_copy(0, rows_F, part(0, h_TD)) : h_TD;
  }
  /// Returns the output of a layer with its features added.
  at::Tensor after_layer(int64_t layer, const at::Tensor& h_TD) const {
    return layer < num_layers() ? h_TD.index_add(0, rows_F, part(1 + layer, h_TD)) : h_TD;
  }
};

RowFeatures features_of(const Batch& batch, PictureFeatures* pictures, const ModelSpec& spec) {
  const int64_t hidden_size = spec.hidden_size;
  if (pictures == nullptr) {
    TORCH_CHECK(batch.pictures == nullptr || batch.pictures->pictures.empty(),
                "a row with pictures, and a model without a vision tower");
    return {{}, {}, hidden_size};
  }
  // A pass of a cached decoder has features without the row's pictures.
  const bool has_pictures = batch.pictures != nullptr ? !batch.pictures->pictures.empty()
                                                      : batch.feature_rows_F.defined();
  const bool two_way = spec.vision && spec.vision->two_way_pictures && has_pictures;
  TORCH_CHECK(two_way != batch.packing.two_way().empty(), "a row with ",
              batch.packing.two_way().size(), " two-way spans, and a model that has ",
              two_way ? "one for each picture" : "none");
  const at::Tensor features_FE = pictures->of(batch);
  return {features_FE, features_FE.defined() ? feature_rows(batch) : at::Tensor(), hidden_size};
}

}  // namespace

struct Decoder::Impl {
  ModelSpec spec;
  std::vector<NamedTensor> parameters;
  Attention* attention;
  DecoderOptions options;
  Weights weights;
  std::vector<Layer> base_layers;  // made of `weights`, without adapters
  bool adapters_on = true;
  std::optional<uint64_t> dropout_seed;
  ExpertLoad* expert_load = nullptr;
  std::vector<RotaryFrequencies> frequencies;  // one for each of rotary_kinds_of(spec)
  at::ScalarType residual_dtype;

  /// Returns the hidden states before the last norm, of all tokens or of `rows_L` if defined.
  /// `then`: the unit used after the layers, or kAlwaysThere.
  at::Tensor run_layers(const Batch& batch, const at::Tensor& rows_L, int then);
  at::Tensor run_one(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                     const at::Tensor& rows_L) const;
  at::Tensor final_norm(const at::Tensor& h_LD) {
    return rms_norm(h_LD, weights.final_norm, spec.norm_kind, spec.norm_eps, options.compute_dtype);
  }
  /// Returns the hidden states that predict a label, after the last norm, [L, D], and their labels,
  /// [L].
  std::pair<at::Tensor, at::Tensor> label_states(const Batch& batch);
  /// Runs head(hidden). `backward`: the use of the head's weight in the backward.
  template <typename Head>
  at::Tensor with_head(const at::Tensor& hidden, Use backward, Head&& head);
  /// Tells the hooks that the head's gradient is accumulated from here on. Returns true if they
  /// made a gradient of zeros.
  bool open_head_gradient(const at::Tensor& hidden);
  void before(int unit, int next) {
    if (options.parameter_hooks) options.parameter_hooks->before(unit, Use::kForward, next);
  }
  void after(int unit) {
    if (options.parameter_hooks) options.parameter_hooks->after(unit, Use::kForward);
  }
  void check_ids(const at::Tensor& ids, const char* what) const;
};

Decoder::Decoder(const ModelSpec& spec, std::vector<NamedTensor> parameters, Attention& attention,
                 const DecoderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->spec = spec;
  impl_->weights = take_weights(spec, parameters, options);
  for (const Layer& layer : impl_->weights.layers) {
    impl_->base_layers.push_back(without_adapters(layer));
  }
  impl_->attention = &attention;
  impl_->options = options;
  for (const RotaryKind& kind : rotary_kinds_of(spec)) {
    // Moved to the device of the rows once, instead of for each row.
    impl_->frequencies.push_back(rotary_frequencies(kind).on(impl_->weights.embedding.device()));
  }
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
    if (id < 0 || id >= spec.vocab_size) {
      throw UserError(fmt::format(
          "{} {} is outside of the model's vocabulary of {}. The tokenizer and the model do not "
          "belong together.",
          what, id, spec.vocab_size));
    }
  }
}

at::Tensor Decoder::Impl::run_layers(const Batch& batch, const at::Tensor& rows_L, int then) {
  check_ids(batch.tokens_T, "Token");
  RowContext row{attention,         batch.packing,           {}, options.compute_dtype,
                 options.mlp_tiles, options.activation_store};
  for (const RotaryFrequencies& kind : frequencies) {
    row.rotary.push_back(
        rotary_table(kind.of_row(batch.num_positions), batch.positions_T, options.compute_dtype));
  }
  row.on_gpu = !batch.tokens_T.is_cpu();
  if (goes_over_rows(spec)) {
    row.whole_row = attention->whole_row(batch.packing);
    row.memory = attention->memory();
  }
  row.expert_load = expert_load;
  if (expert_load != nullptr && batch.documents_T.defined()) {
    row.is_real_T = batch.documents_T.ge(0);
  }
  const RowFeatures features = features_of(batch, options.pictures, spec);
  ParameterHooks* const hooks = options.parameter_hooks;
  before(kEmbeddingUnit, /*next=*/1);
  auto h_TD = embed(weights.embedding, batch.tokens_T, residual_dtype, spec.padding_token,
                    spec.embedding_scale);
  after(kEmbeddingUnit);
  // In place: the embedding's backward does not read its result.
  if (dropout_seed && options.neftune_alpha > 0) {
    add_embedding_noise(h_TD.detach(), batch, options.neftune_alpha, *dropout_seed);
  }
  h_TD = features.merged(h_TD);
  h_TD = between_units(h_TD, hooks, /*above=*/1, {kEmbeddingUnit, Use::kGradients, /*next=*/-1});
  const std::vector<Layer>& layers = adapters_on ? weights.layers : base_layers;
  const bool drops = adapters_on && dropout_seed && options.lora_dropout > 0;
  const at::Tensor keys_T = drops ? token_keys(batch) : at::Tensor();
  for (size_t i = 0; i < layers.size(); ++i) {
    const int unit = static_cast<int>(i) + 1;
    const bool last = i + 1 == layers.size();
    const int above = last ? then : unit + 1;
    // The backward continues below only if something there is trained.
    const int below = unit > 1 && h_TD.requires_grad() ? unit - 1 : -1;
    before(unit, above);
    const auto layer_number = static_cast<int64_t>(i);
    // The other rows of the last layer are not read, except by sums of all routers' scores and by
    // a layer's features.
    const bool all_rows = layer_number < features.num_layers() ||
                          (expert_load != nullptr && expert_load->sums_scores &&
                           experts_of(spec.layer(layer_number)) != nullptr);
    const at::Tensor rows = last && !all_rows ? rows_L : at::Tensor();
    if (rows.defined()) row.is_real_T = at::Tensor();  // requested rows are never padding
    std::optional<Dropout> dropout;
    if (drops) dropout = {options.lora_dropout, mix_seed(*dropout_seed, i), keys_T};
    const Layer layer = for_pass(layers[i], dropout, rows);
    h_TD = features.after_layer(layer_number, run_one(h_TD, layer, row, rows));
    if (last && all_rows && rows_L.defined()) h_TD = h_TD.index_select(0, rows_L);
    after(unit);
    h_TD = between_units(h_TD, hooks, above, {unit, Use::kBackward, below});
  }
  return h_TD;
}

at::Tensor Decoder::Impl::run_one(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                                  const at::Tensor& rows_L) const {
  if (options.plain_layers) return run_plainly(h_TD, layer, row, rows_L);
  return options.gradient_checkpointing ? run_checkpointed(h_TD, layer, row, rows_L)
                                        : run_layer(h_TD, layer, row, rows_L);
}

std::pair<at::Tensor, at::Tensor> Decoder::Impl::label_states(const Batch& batch) {
  const auto rows_L = label_rows(batch);
  const auto labels_L = batch.labels_T.index_select(0, rows_L);
  check_ids(labels_L, "Label");
  return {final_norm(run_layers(batch, rows_L, spec.head_unit())), labels_L};
}

template <typename Head>
at::Tensor Decoder::Impl::with_head(const at::Tensor& hidden, Use backward, Head&& head) {
  const int unit = spec.head_unit();
  before(unit, /*next=*/-1);
  const at::Tensor result = head(hidden);
  // Keep a unit whose weights the backward reads.
  if (!result.requires_grad() || backward == Use::kGradients) after(unit);
  const int below = hidden.requires_grad() ? static_cast<int>(spec.num_layers) : -1;
  return between_units(result, options.parameter_hooks, kAlwaysThere, {unit, backward, below});
}

bool Decoder::Impl::open_head_gradient(const at::Tensor& hidden) {
  const bool was_there = weights.head.grad().defined();
  if (options.parameter_hooks == nullptr || was_there || !weights.head.requires_grad() ||
      !needs_backward({hidden}, {weights.head})) {
    return false;
  }
  options.parameter_hooks->before(spec.head_unit(), Use::kGradients, /*next=*/-1);
  return weights.head.grad().defined();
}

at::Tensor Decoder::hidden_states(const Batch& batch) {
  return impl_->final_norm(impl_->run_layers(batch, {}, kAlwaysThere));
}

at::Tensor Decoder::hidden_states(const Batch& batch, const at::Tensor& rows_L) {
  return impl_->final_norm(impl_->run_layers(batch, rows_L, kAlwaysThere));
}

void Decoder::check_ids(const Batch& batch) const {
  impl_->check_ids(batch.tokens_T, "Token");
  impl_->check_ids(batch.labels_T.index_select(0, label_rows(batch)), "Label");
}

void Decoder::keep_feed_forwards(int64_t count) {
  for (std::vector<Layer>* layers : {&impl_->weights.layers, &impl_->base_layers}) {
    for (Layer& layer : *layers) layer.keeps_feed_forward = false;
    for (const int64_t i : last_saving_layers(impl_->spec, count)) {
      (*layers)[static_cast<size_t>(i)].keeps_feed_forward = true;
    }
  }
}

void Decoder::use_attention(Attention& attention) { impl_->attention = &attention; }

void Decoder::use_adapters(bool on) {
  impl_->adapters_on = on;
  if (impl_->options.pictures != nullptr) impl_->options.pictures->use_adapters(on);
}

void Decoder::count_experts(ExpertLoad* load) { impl_->expert_load = load; }
void Decoder::set_dropout_seed(std::optional<uint64_t> seed) { impl_->dropout_seed = seed; }

std::optional<uint64_t> Decoder::dropout_seed() const { return impl_->dropout_seed; }

at::Tensor Decoder::logits(const Batch& batch) {
  const auto hidden_TD = impl_->final_norm(impl_->run_layers(batch, {}, impl_->spec.head_unit()));
  const auto logits_TV = impl_->with_head(hidden_TD, Use::kBackward, [&](const at::Tensor& hidden) {
    return at::linear(hidden, impl_->weights.head.to(hidden.scalar_type()));
  });
  return logits_TV.to(arithmetic_dtype(logits_TV.scalar_type()));
}

at::Tensor Decoder::token_logprobs(const Batch& batch) {
  return token_scores(batch, {}).logprobs_L;
}

TokenScores Decoder::token_scores(const Batch& batch, const TokenScoreOptions& options) {
  const auto [hidden_LD, labels_L] = impl_->label_states(batch);
  at::Tensor entropies_L;
  const at::Tensor logprobs_L = impl_->with_head(
      hidden_LD, Use::kBackward, [&, labels_L = labels_L](const at::Tensor& hidden) {
        const TokenScores scores =
            linear_token_scores(hidden, impl_->weights.head, labels_L, options);
        entropies_L = scores.entropies_L;
        return scores.logprobs_L;
      });
  return {logprobs_L, entropies_L};
}

TeacherHead Decoder::teacher_head(const Batch& batch) {
  const c10::NoGradGuard no_grad;
  const auto seed = std::exchange(impl_->dropout_seed, std::nullopt);
  ExpertLoad* const load = std::exchange(impl_->expert_load, nullptr);
  TeacherHead head{hidden_states(batch, label_rows(batch)), impl_->weights.head};
  impl_->dropout_seed = seed;
  impl_->expert_load = load;
  if (ParameterHooks* const hooks = impl_->options.parameter_hooks) {
    const int unit = impl_->spec.head_unit();
    head.before_use = [=] { hooks->before(unit, Use::kForward, /*next=*/-1); };
    head.after_use = [=] { hooks->after(unit, Use::kForward); };
  }
  return head;
}

at::Tensor Decoder::divergence_from(const TeacherHead& teacher, const Batch& batch,
                                    const DivergenceOptions& options) {
  const auto [hidden_LD, labels_L] = impl_->label_states(batch);
  return impl_->with_head(hidden_LD, Use::kBackward, [&](const at::Tensor& hidden) {
    return linear_divergence(hidden, impl_->weights.head, teacher, options);
  });
}

at::Tensor Decoder::logprobs_and_divergences(const TeacherHead& teacher, const Batch& batch,
                                             const DivergenceOptions& options,
                                             const LossFactors& visit) {
  const auto [hidden_LD, labels_L] = impl_->label_states(batch);
  return impl_->with_head(
      hidden_LD, Use::kBackward, [&, labels_L = labels_L](const at::Tensor& hidden) {
        const at::Tensor& head = impl_->weights.head;
        if (visit) linear_nll_sum(hidden, head, labels_L, /*chunk_bytes=*/{}, /*known=*/{}, visit);
        return at::stack({linear_token_logprobs(hidden, head, labels_L),
                          linear_divergence(hidden, head, teacher, options)});
      });
}

at::Tensor Decoder::negative_log_likelihood_sum(const Batch& batch, std::optional<double> upstream,
                                                const LossFactors& factors) {
  const auto [hidden_LD, labels_L] = impl_->label_states(batch);
  return impl_->with_head(
      hidden_LD, Use::kGradients, [&, labels_L = labels_L](const at::Tensor& hidden) {
        return linear_nll_sum(hidden, impl_->weights.head, labels_L, /*chunk_bytes=*/{},
                              {upstream, impl_->open_head_gradient(hidden)}, factors);
      });
}

}  // namespace longspan
