// Readers of tensor files: weights, adapters, optimizer states; and a whole model that is loaded
// for generation. They need libtorch.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/config/config.h"
#include "longspan/generation/assistant.h"
#include "longspan/models/lora.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/train/reference_cache.h"
#include "longspan/train/reference_key.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using fuzz::choose;
using fuzz::Folder;

/// Returns a safetensors file. Way 0: the bytes unchanged. Way 1: the bytes are a header; its
/// length is prepended, and as many zeros as its first line says are appended.
std::string safetensors_file(std::string_view input) {
  if (choose(input, 2) == 0) return std::string(input);
  const size_t end = std::min(input.find('\n'), input.size());
  const size_t num_zeros =
      std::min(std::strtoul(std::string(input.substr(0, end)).c_str(), nullptr, 10), 100'000ul);
  const std::string_view header = input.substr(std::min(end + 1, input.size()));
  std::string file;
  for (int byte = 0; byte < 8; ++byte) {
    file += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * byte));
  }
  return file.append(header).append(num_zeros, '\0');
}

const ModelConfig& small_model() {
  static const ModelConfig config = parse_model_config(fuzz::kSmallModel, "config.json");
  return config;
}

/// A model's folder with all files.
const std::string& small_model_folder() {
  static const std::string folder = [] {
    std::string made = fuzz::lasting_folder() + "/model";
    save_model_folder(made, small_model(), random_parameters(small_model(), 1, at::kFloat),
                      at::kFloat, fuzz::small_tokenizer_folder());
    return made;
  }();
  return folder;
}

/// Returns the content of a file of small_model_folder(). std::filesystem's copy functions fail
/// when the fuzzer's timer interrupts them (EINTR); streams try again.
std::string small_model_file(const std::string& name) {
  std::ifstream file(small_model_folder() + "/" + name, std::ios::binary);
  fuzz::require(file.is_open(), "the small model has the file");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Reads every element, so that a too short mapping is noticed.
void add_up(const at::Tensor& tensor) {
  fuzz::require(tensor.numel() < 1'000'000, "a small file has few numbers");
  if (tensor.numel() > 0) tensor.to(at::kDouble).sum();
}

FUZZ_READER(safetensors) {
  const Folder folder;
  const std::string path = folder.write("model.safetensors", safetensors_file(input));
  for (const NamedTensor& tensor : read_safetensors(path)) add_up(tensor.tensor);
}

FUZZ_READER(weights) {
  const Folder folder;
  folder.write("model.safetensors", safetensors_file(input));
  check_model_folder(folder.path(), small_model());
  load_parameters(folder.path(), small_model(), at::kFloat);
}

/// model.safetensors.index.json next to the file that it should name.
FUZZ_READER(weights_index) {
  const Folder folder;
  folder.write("model-00001-of-00001.safetensors", small_model_file("model.safetensors"));
  folder.write("model.safetensors.index.json", input);
  check_model_folder(folder.path(), small_model());
  load_parameters(folder.path(), small_model(), at::kFloat);
}

/// config.json of another model next to the weights, with sizes that the weights do not have.
FUZZ_READER(config_beside_weights) {
  const Folder folder;
  folder.write("model.safetensors", small_model_file("model.safetensors"));
  folder.write("config.json", input);
  const ModelConfig config = load_folder_config(folder.path());
  load_parameters(folder.path(), config, at::kFloat);
}

constexpr const char* kAdapterConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})";

FUZZ_READER(adapter_config) {
  static const std::vector<NamedTensor> matrices = [] {
    std::vector<NamedTensor> all;
    LoraShape shape;
    shape.r = 2;
    shape.modules = {"q_proj"};
    for (NamedTensor& matrix : new_lora_parameters(small_model().spec, shape, 1)) {
      all.push_back({"base_model.model." + matrix.name, matrix.tensor.detach()});
    }
    return all;
  }();
  const Folder folder;
  write_safetensors(folder.path() + "/adapter_model.safetensors", matrices);
  folder.write("adapter_config.json", input);
  const Adapter adapter = load_adapter(folder.path(), small_model());
  fuzz::require(adapter.shape.r == 2, "the rank is that of the matrices");
}

FUZZ_READER(adapter_weights) {
  const Folder folder;
  folder.write("adapter_config.json", kAdapterConfig);
  folder.write("adapter_model.safetensors", safetensors_file(input));
  const Adapter adapter = load_adapter(folder.path(), small_model());
  for (const NamedTensor& matrix : adapter.parameters) add_up(matrix.tensor);
}

/// For gpt-oss's family: a layer with experts, which files stack.
ModelConfig small_experts(const char* quantization) {
  return parse_model_config(
      fmt::format(R"({{"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"],
 "vocab_size": 8, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 2,
 "num_experts_per_tok": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-05,
 "sliding_window": 4, "layer_types": ["sliding_attention"], "tie_word_embeddings": true{}}})",
                  quantization),
      "config.json");
}

/// Matrices in MXFP4, or stacked plain ones if the file has those.
FUZZ_READER(mxfp4_weights) {
  static const ModelConfig config =
      small_experts(R"(, "quantization_config": {"quant_method": "mxfp4"})");
  const Folder folder;
  folder.write("model.safetensors", safetensors_file(input));
  check_model_folder(folder.path(), config);
  for (const NamedTensor& parameter : load_parameters(folder.path(), config, at::kFloat)) {
    add_up(parameter.tensor);
  }
}

/// Matrices in fp8, in blocks of 16 x 12, or plain ones if the file has those.
FUZZ_READER(fp8_weights) {
  static const ModelConfig config = parse_model_config(
      R"({"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
 "vocab_size": 8, "hidden_size": 20, "intermediate_size": 24, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": null, "kv_lora_rank": 6,
 "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "first_k_dense_replace": 1,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
 "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 12]}})",
      "config.json");
  const Folder folder;
  folder.write("model.safetensors", safetensors_file(input));
  check_model_folder(folder.path(), config);
  for (const NamedTensor& parameter : load_parameters(folder.path(), config, at::kFloat)) {
    add_up(parameter.tensor);
  }
}

/// Reads matrices in 4 bits as numbers, and as bytes that stay packed.
void read_grouped_weights(std::string_view input, const char* method) {
  const ModelConfig config = parse_model_config(
      fmt::format(R"({{"model_type": "llama", "architectures": ["LlamaForCausalLM"],
 "vocab_size": 8, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
 "quantization_config": {{"quant_method": "{}", "bits": 4, "group_size": 16}}}})",
                  method),
      "config.json");
  const Folder folder;
  folder.write("model.safetensors", safetensors_file(input));
  check_model_folder(folder.path(), config);
  for (const ParameterSource& source : parameter_sources(folder.path(), config, at::kFloat)) {
    add_up(source.make());
    if (source.make_packed) add_up(source.make_packed());
  }
}

FUZZ_READER(gptq_weights) { read_grouped_weights(input, "gptq"); }
FUZZ_READER(awq_weights) { read_grouped_weights(input, "awq"); }

/// PEFT's adapters of whole parameters. Way 0: the weights; way 1: their config.
FUZZ_READER(stacked_adapters) {
  constexpr const char* kConfig =
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [],
 "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]})";
  static const ModelConfig model = small_experts("");
  static const std::vector<NamedTensor> matrices = [] {
    // The innermost wrapper belongs to the first parameter.
    const std::string experts = "base_model.model.model.layers.0.mlp.experts.";
    return std::vector<NamedTensor>{
        {experts + "base_layer.lora_A.weight", at::ones({4, 32})},
        {experts + "base_layer.lora_B.weight", at::ones({64, 4})},
        {experts + "lora_A.weight", at::ones({4, 32})},
        {experts + "lora_B.weight", at::ones({32, 4})},
    };
  }();
  const Folder folder;
  if (choose(input, 2) == 0) {
    folder.write("adapter_config.json", kConfig);
    folder.write("adapter_model.safetensors", safetensors_file(input));
  } else {
    folder.write("adapter_config.json", input);
    write_safetensors(folder.path() + "/adapter_model.safetensors", matrices);
  }
  const Adapter adapter = load_adapter(folder.path(), model);
  for (const NamedTensor& matrix : adapter.parameters) add_up(matrix.tensor);
}

FUZZ_READER(value_head) {
  const Folder folder;
  folder.write("value_head.safetensors", safetensors_file(input));
  load_value_head(folder.path(), small_model());
}

/// A part of an optimizer's state, from which a range of eight elements is read.
FUZZ_READER(state_parts) {
  const Folder folder;
  folder.write(state_part_name(1, 1), safetensors_file(input));
  const StateReader reader(folder.path());
  for (const char* what : {"exp_avg", "master"}) {
    StateShard shard{"w", 0, 8, 0, {}};
    shard.tensors[what] = at::zeros({8}, at::kFloat);
    try {
      reader.read(shard);
    } catch (const UserError&) {
    }
  }
}

void load(const std::string& folder) {
  AssistantRequest request;
  request.model_name_or_path = folder;
  const Assistant assistant = load_assistant(request);
  assistant.prompt({.messages = {{Role::kUser, "yes"}}, .source = "", .rejected = {}});
  fuzz::require(assistant.options.max_new_tokens > 0, "an answer has some tokens");
}

/// One of the small files of a model for generation.
FUZZ_READER(assistant) {
  constexpr const char* kNames[] = {"generation_config.json", "tokenizer_config.json",
                                    "special_tokens_map.json", "chat_template.jinja",
                                    "config.json"};
  const char* name = kNames[choose(input, 5)];
  const Folder folder;
  for (const fs::directory_entry& file : fs::directory_iterator(small_model_folder())) {
    const std::string file_name = file.path().filename().string();
    folder.write(file_name, small_model_file(file_name));
  }
  folder.write(name, input);
  load(folder.path());
}

/// For a run with nothing left to compute.
class NoAttention : public SequenceParallel {
 public:
  int rank() const override { return 0; }
  TokenOrder token_order_of(int, const Packing&, int64_t) const override {
    throw UserError("not here");
  }
  at::Tensor attend(const AttentionInputs&, const AttentionSpec&, const Packing&,
                    AttentionCheckpoint) override {
    throw UserError("not here");
  }
};

/// Log-probabilities kept by an earlier run; missing ones are not computed.
FUZZ_READER(reference_cache) {
  const Folder folder;
  std::vector<Example> examples(2);
  for (Example& example : examples) {
    example.documents = {{{1, 2, 3}, {-100, 2, 3}}, {{1, 4}, {-100, 4}}};
  }
  Config config;
  config.method.stage = "dpo";
  config.output.output_dir = folder.path();
  config.model.model_name_or_path = small_model_folder();
  const ExamplesInMemory all(std::move(examples));
  const ReferenceSettings settings{config.model, config.method, config.preferences, config.data,
                                   config.optimization};
  static const std::string key = reference_key(settings, all);
  folder.write(fmt::format("reference_logps_{}.jsonl", key), input);
  const Mesh mesh{};
  NoAttention attention;
  const Events silent(/*rank=*/0, /*sink=*/nullptr);
  precompute_reference(
      {settings, config.output.output_dir, mesh, attention, at::kCPU, all, [] { return false; }},
      []() -> std::unique_ptr<Reference> { throw UserError("not here"); }, silent);
}

}  // namespace
}  // namespace longspan
