// Reads and writes Hugging Face model folders.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {

/// Reads all parameters of the architecture from model.safetensors or model.safetensors.index.json.
/// Returns new leaf tensors in `dtype` on the CPU. Throws UserError: no weights, missing or
/// unexpected tensors, shapes that differ from config.json.
std::vector<NamedTensor> load_parameters(const std::string& folder, const ModelConfig& config,
                                         at::ScalarType dtype);

/// Returns sources of the parameters of load_parameters(), marked as untrained. A source reads its
/// parameter from the file on demand, so no process holds all parameters. Throws UserError as
/// load_parameters() does, for problems that are visible in headers.
std::vector<ParameterSource> parameter_sources(const std::string& folder, const ModelConfig& config,
                                               at::ScalarType dtype);

/// Returns the configuration of the folder's model, with an untied head where the weights have an
/// untied head (has_own_head). Checks the headers (names, shapes, file lengths). Reads no tensors
/// except such a head and the embedding. Throws UserError as load_model_config and load_parameters
/// do.
ModelConfig load_folder_config(const std::string& folder);

/// Checks headers and reads no tensors. Throws UserError as load_parameters does.
void check_model_folder(const std::string& folder, const ModelConfig& config);

/// Largest file of weights in bytes, as in transformers.
inline constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

/// Writes a folder that transformers' from_pretrained loads: config.json with an updated
/// torch_dtype, and safetensors shards of at most max_shard_bytes with an index. Copies tokenizer
/// files and generation_config.json from source_folder, and the tensors of a vision-language
/// model's other parts.
void save_model_folder(const std::string& folder, const ModelConfig& config,
                       const std::vector<NamedTensor>& parameters, at::ScalarType dtype,
                       const std::string& source_folder, int64_t max_shard_bytes = kMaxShardBytes);

/// Writes the folder of save_model_folder without the weight files. `files` gives the weight file
/// of each parameter, which may be written later. Writes no index if all parameters are in
/// model.safetensors.
void save_model_files(const std::string& folder, const ModelConfig& config, at::ScalarType dtype,
                      const std::string& source_folder,
                      const std::vector<std::pair<ParameterShape, std::string>>& files);

/// Returns the number of weight files in addition to the language model's weight files: 1 for a
/// vision-language model (models/composite.h), else 0. save_model_files copies this file from
/// source_folder. Copies nothing if source_folder no longer exists.
int num_copied_files(const ModelConfig& config);
/// Bytes of the copied file; files that cannot be read do not count.
int64_t num_copied_bytes(const std::string& folder, const ModelConfig& config);

/// Returns "model.safetensors", or "model-00001-of-00004.safetensors", counted from 1.
std::string weight_file_name(int number, int num_files);

/// Copies tokenizer files, chat template and generation_config.json, where `source_folder` has
/// them. Copies are new files with the process's own modes. Skips files that model_file() refuses.
void copy_tokenizer_files(const std::string& source_folder, const std::string& folder);

/// Parameters of `longspan init`: matrices from normal(0, initializer_range), norms 1, biases 0. A
/// seed gives the same numbers on every machine.
std::vector<NamedTensor> random_parameters(const ModelConfig& config, uint64_t seed,
                                           at::ScalarType dtype);

/// Removes config.json and weights of any kind (model*.safetensors and their index, an adapter, a
/// value head) from a folder, except `keep`. A folder with files of two saves would load as the
/// wrong model.
void remove_other_weights(const std::string& folder, const std::set<std::string>& keep);

}  // namespace longspan
