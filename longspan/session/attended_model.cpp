#include "longspan/session/attended_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "longspan/account/held_parameters.h"
#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/data/dataset_info.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/models/composite.h"
#include "longspan/models/grouped_format.h"
#include "longspan/models/rope_scaling.h"
#include "longspan/models/vocabulary.h"
#include "longspan/settings/choices.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {
namespace {

/// Returns the trained adapter; nullopt if there is none.
std::optional<LoraShape> trained_adapter(const Config& config, const ModelConfig& model,
                                         const ModelSpec& spec) {
  if (!trains_adapter(config.method)) return std::nullopt;
  const std::vector<std::string> adapters = split_names(config.model.adapter_name_or_path);
  if (adapters.empty()) return lora_shape_of(config.method, spec);
  return as_trained(load_adapter(adapters.back(), model).shape, config.method);
}

/// Whether rows of the run have pictures: a data set lists their columns. Reads dataset_info.json
/// only for models that take pictures.
bool has_pictures(const Config& config, const ModelConfig& model) {
  if (config.data.rows_have_pictures) return true;
  if (!takes_pictures(model)) return false;
  const std::string& own = config.data.dataset;
  const std::string names = own.empty() || config.data.eval_dataset.empty()
                                ? own + config.data.eval_dataset
                                : own + "," + config.data.eval_dataset;
  if (names.empty()) return false;
  try {
    return std::ranges::any_of(
        read_dataset_info(config.data.dataset_dir, names, config.method.stage),
        [](const DatasetEntry& entry) { return entry.columns.images || entry.columns.videos; });
  } catch (const UserError&) {
    return false;  // the reader of the data sets says what is wrong
  }
}

/// Returns the model with rows for all tokens of the run's tokenizer, if resize_vocab asks for
/// them. Throws UserError where an added token has no row.
ModelConfig with_tokens(const Config& config, const ModelConfig& own, const std::string& name) {
  const AddedTokens added = added_tokens(config.data);
  if (added.empty() && !config.method.resize_vocab) return own;
  const Tokenizer tokenizer = run_tokenizer(config.model.model_name_or_path, config.data);
  const int64_t num_known = own.spec.vocab_size;
  const bool grows = config.method.resize_vocab && tokenizer.vocab_size() > num_known;
  if (grows && own.stored.four_bits() != nullptr) {
    throw UserError(fmt::format(
        "resize_vocab: the tokenizer has {} tokens and {} has {}, but no rows are added "
        "to weights in 4 bits ({}). Use the original model.",
        tokenizer.vocab_size(), name, num_known, own.stored.grouped->name));
  }
  const int64_t num_rows = grows ? padded_vocabulary(tokenizer.vocab_size()) : num_known;
  require_rows(tokenizer, added, num_rows, name,
               config.method.resize_vocab
                   ? "The tokenizer's ids have gaps: put the model's own tokenizer into its folder."
                   : "Set resize_vocab: true, which adds rows.");
  return with_vocabulary(own, num_rows);
}

/// `name`: of the model in messages. `adapters`: names with commas.
ModelConfig as_trained_with(const Config& config, const ModelConfig& own, const std::string& name,
                            const std::string& adapters) {
  ModelConfig asked = stretched(own, config.model.rope_scaling, config.data.cutoff_len, name);
  if (same_positions(asked, own)) asked = with_positions_of(split_names(adapters), own);
  asked = with_tokens(config, asked, name);
  return has_pictures(config, asked) ? with_pictures(asked) : asked;
}

}  // namespace

ModelConfig model_config_for(const Config& config, const std::string& folder) {
  return as_trained_with(config, load_folder_config(folder), folder,
                         folder == config.model.model_name_or_path
                             ? config.model.adapter_name_or_path
                             : config.preferences.ref_model_adapters);
}

ModelConfig model_config_for(const Config& config, const ModelConfig& own) {
  return as_trained_with(config, own, "the model", config.model.adapter_name_or_path);
}

ModelSpec attended_model(const Config& config, const ModelConfig& model) {
  ModelSpec spec = model.spec;
  const bool makes_latents = std::ranges::any_of(attentions_of(spec), [](const auto& attention) {
    return attention.first.latent_dim.has_value();
  });
  if (!makes_latents) return spec;
  const std::optional<LoraShape> lora = trained_adapter(config, model, spec);
  return lora ? without_latent_exchange(std::move(spec), *lora) : spec;
}

}  // namespace longspan
