// Hugging Face model folders, in and out.
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

/// All parameters of the architecture from model.safetensors or model.safetensors.index.json,
/// converted to `dtype`, as fresh leaf tensors on the CPU. Throws UserError: no weights, missing or
/// unexpected tensors, shapes that differ from config.json.
std::vector<NamedTensor> load_parameters(const std::string& folder, const ModelConfig& config,
                                         at::ScalarType dtype);

/// The same as sources: each is read from its file when it is made, so that no process holds all
/// parameters. None is trained. Throws UserError as above, for what headers tell.
std::vector<ParameterSource> parameter_sources(const std::string& folder, const ModelConfig& config,
                                               at::ScalarType dtype);

/// The configuration of the folder's model, with a head of its own where the weights have one
/// (has_own_head). Checks the headers (names, shapes, file lengths), and reads no tensors but such
/// a head and the embedding. Throws UserError as load_model_config and load_parameters do.
ModelConfig load_folder_config(const std::string& folder);

/// Checks headers only, reading no tensor data.
void check_model_folder(const std::string& folder, const ModelConfig& config);

/// Of a file of weights, as transformers writes them.
inline constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

/// Writes config.json (torch_dtype updated), safetensors shards of at most max_shard_bytes with an
/// index, and copies tokenizer files and generation_config.json from source_folder, and of a model
/// of texts and pictures the other parts' tensors. A folder that transformers' from_pretrained
/// loads.
void save_model_folder(const std::string& folder, const ModelConfig& config,
                       const std::vector<NamedTensor>& parameters, at::ScalarType dtype,
                       const std::string& source_folder, int64_t max_shard_bytes = kMaxShardBytes);

/// All of that but the weights themselves, for which `files` says where each is: files of the
/// folder that are there or will be. Without an index where there is one file, model.safetensors.
void save_model_files(const std::string& folder, const ModelConfig& config, at::ScalarType dtype,
                      const std::string& source_folder,
                      const std::vector<std::pair<ParameterShape, std::string>>& files);

/// Files of weights beside those of the language model: one, the last, of a model of texts and
/// pictures (models/composite.h), which save_model_files copies out of source_folder. Where that
/// went away in the meantime, there is none.
int num_copied_files(const ModelConfig& config);
/// What that file takes, as far as the folder can be read.
int64_t num_copied_bytes(const std::string& folder, const ModelConfig& config);

/// model.safetensors, or "model-00001-of-00004.safetensors", counted from 1.
std::string weight_file_name(int number, int num_files);

/// Tokenizer files, chat template and generation_config.json, as far as `source_folder` has them:
/// as new files, whose modes are the process's own. What model_file refuses is left out.
void copy_tokenizer_files(const std::string& source_folder, const std::string& folder);

/// `longspan init`: normal(0, initializer_range) matrices, norms 1, biases 0; the same for a seed
/// on every machine.
std::vector<NamedTensor> random_parameters(const ModelConfig& config, uint64_t seed,
                                           at::ScalarType dtype);

/// Removes weights of any kind (model*.safetensors and their index, an adapter, a value head) and
/// config.json from a folder, except those named: files of an earlier save beside new ones would
/// make a folder that loads the wrong model.
void remove_other_weights(const std::string& folder, const std::set<std::string>& keep);

}  // namespace longspan
