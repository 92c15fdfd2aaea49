#include "longspan/session/attended_model.h"

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
#include "longspan/models/composite.h"
#include "longspan/models/rope_scaling.h"
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

/// `name`: of the model in messages. `adapters`: names with commas.
ModelConfig as_trained_with(const Config& config, const ModelConfig& own, const std::string& name,
                            const std::string& adapters) {
  ModelConfig asked = stretched(own, config.model.rope_scaling, config.data.cutoff_len, name);
  if (same_positions(asked, own)) asked = with_positions_of(split_names(adapters), own);
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
