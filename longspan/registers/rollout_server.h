// Programs that serve a model, and ways to give them new weights, as data. No torch.
#pragma once

#include <string_view>
#include <vector>

namespace longspan {

/// A program that answers prompts over HTTP. Fields are JSON pointers (RFC 6901): of the request,
/// or, for the answer, of one of its choices. Empty: there is no such field.
struct ServerKind {
  std::string_view name;  // the value of rollout_server

  // Request
  std::string_view path;    // of the request, e.g. "/v1/completions"
  std::string_view prompt;  // list of token ids; a text where the program answers by texts (`text`)
  std::string_view length;  // most tokens of an answer
  std::string_view count;   // number of answers; empty: a request gets one answer
  std::string_view model;   // name of the model
  std::string_view
      adapter;  // name of an adapter; replaces the model's name if the field is `model`
  std::string_view temperature;
  std::string_view seed;
  std::string_view ends;  // list of the tokens that end an answer
  /// Further fields, as a JSON object. These fields request token ids and log-probabilities, and
  /// turn off every change of the model's probabilities except the temperature.
  std::string_view fixed;
  std::string_view json_text;  // an object of the request that is sent as a text of JSON

  // Answer
  std::string_view choices;  // list of choices; empty: the whole answer is a choice or a list
  /// The answer without its end token, for programs that accept and return texts only. The
  /// tokenizer of such a program adds its special tokens to the prompt.
  std::string_view text;
  std::string_view token_ids;  // list of the answer's tokens; empty: the answer is a text
  std::string_view id;         // within an element of that list; empty: the element is the id
  /// List with an element for each token: log p of the logits divided by the temperature. Empty:
  /// the program returns no log-probability per token.
  std::string_view logprobs;
  std::string_view logprob;    // within an element of that list; empty: the element is the number
  std::string_view finish;     // why the answer ended
  std::string_view ended;      // value of `finish`: the model ended the answer
  std::string_view truncated;  // value of `finish`: the length limit ended the answer
  std::string_view aborted;    // value of `finish`: the server aborted the answer
  /// Whether an answer that the model ended always includes the end token.
  bool returns_end;
  std::string_view prompt_ids;  // the prompt as the server read it
  std::string_view num_prompt;  // number of the prompt's tokens

  // Updates: paths of POST requests
  std::string_view load_model;     // {LOAD_FIELD: FOLDER}
  std::string_view load_field;     // pointer, of the body of load_model
  std::string_view unload_models;  // before load_model: unloads all models; a use loads them again
  /// The loaded folder becomes an additional model on the server, which requests name as their
  /// model.
  bool loads_beside;
  std::string_view load_adapter;    // {"lora_name": NAME, "lora_path": FOLDER}
  std::string_view unload_adapter;  // {"lora_name": NAME}
  std::string_view models;          // GET: {"data": [{"id": NAME}]}, of adapters, too
  // Around an in-place change of the weights: `pause` before the change, `reset_cache` and then
  // `resume` after the change.
  std::string_view pause, reset_cache, resume;
  std::string_view remedy;  // for an unknown path: how to start the server
};

/// The register, in the order of the help.
inline constexpr ServerKind kServerKinds[] = {
    {.name = "vllm",
     .path = "/v1/completions",
     .prompt = "/prompt",
     .length = "/max_tokens",
     .count = "/n",
     .model = "/model",
     .adapter = "/model",
     .temperature = "/temperature",
     .seed = "/seed",
     .ends = "/stop_token_ids",
     .fixed = R"({"return_token_ids": true, "logprobs": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
                  "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0})",
     .json_text = "",
     .choices = "/choices",
     .text = "",
     .token_ids = "/token_ids",
     .id = "",
     .logprobs = "/logprobs/token_logprobs",  // with --logprobs-mode processed_logprobs
     .logprob = "",
     .finish = "/finish_reason",
     .ended = "stop",
     .truncated = "length",
     .aborted = "abort",
     .returns_end = true,
     .prompt_ids = "/prompt_token_ids",
     .num_prompt = "",
     .load_model = "",
     .load_field = "",
     .unload_models = "",
     .loads_beside = false,
     .load_adapter = "/v1/load_lora_adapter",
     .unload_adapter = "/v1/unload_lora_adapter",
     .models = "/v1/models",
     .pause = "/pause?mode=keep",
     .reset_cache = "/reset_prefix_cache",
     .resume = "/resume",
     .remedy = "Start the server with VLLM_SERVER_DEV_MODE=1, and for adapters with "
               "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora."},
    {.name = "sglang",
     .path = "/generate",
     .prompt = "/input_ids",
     .length = "/sampling_params/max_new_tokens",
     .count = "/sampling_params/n",
     .model = "",
     .adapter = "/lora_path",
     .temperature = "/sampling_params/temperature",
     .seed = "",  // with a seed, all answers to a prompt would be the same
     .ends = "/sampling_params/stop_token_ids",
     .fixed = R"({"return_logprob": true, "stream": false,
                  "sampling_params": {"top_p": 1.0, "top_k": -1, "min_p": 0.0,
                                      "repetition_penalty": 1.0, "presence_penalty": 0.0,
                                      "frequency_penalty": 0.0}})",
     .json_text = "",
     .choices = "",
     .text = "",
     .token_ids = "/meta_info/output_token_logprobs",  // [log-probability, id, text]
     .id = "/1",
     .logprobs = "/meta_info/output_token_logprobs",
     .logprob = "/0",
     .finish = "/meta_info/finish_reason/type",
     .ended = "stop",
     .truncated = "length",
     .aborted = "abort",
     .returns_end = true,
     .prompt_ids = "",
     .num_prompt = "/meta_info/prompt_tokens",
     .load_model = "/update_weights_from_disk",
     .load_field = "/model_path",
     .unload_models = "",
     .loads_beside = false,
     .load_adapter = "/load_lora_adapter",
     .unload_adapter = "/unload_lora_adapter",
     .models = "/v1/models",
     .pause = "",  // loading waits for the answers in flight, and empties the cache
     .reset_cache = "",
     .resume = "",
     .remedy = "For adapters, start the server with --enable-lora."},
    {.name = "llama_cpp",
     .path = "/completion",
     .prompt = "/prompt",
     .length = "/n_predict",
     .count = "",
     .model = "/model",
     .adapter = "",
     .temperature = "/temperature",
     .seed = "/seed",
     .ends = "",
     .fixed = R"({"return_tokens": true, "samplers": ["temperature"], "stream": false})",
     .json_text = "",
     .choices = "",
     .text = "",
     .token_ids = "/tokens",
     .id = "",
     .logprobs = "",  // none for a token that ends within a character
     .logprob = "",
     .finish = "/stop_type",
     .ended = "eos",
     .truncated = "limit",
     .aborted = "none",
     .returns_end = true,
     .prompt_ids = "",
     .num_prompt = "/tokens_evaluated",
     .load_model = "",
     .load_field = "",
     .unload_models = "",
     .loads_beside = false,
     .load_adapter = "",
     .unload_adapter = "",
     .models = "",
     .pause = "",
     .reset_cache = "",
     .resume = "",
     .remedy = ""},
    {.name = "transformers",
     .path = "/v1/completions",
     .prompt = "/prompt",
     .length = "/generation_config/max_new_tokens",
     .count = "",
     .model = "/model",
     .adapter = "",
     .temperature = "/generation_config/temperature",
     .seed = "/seed",
     .ends = "/generation_config/eos_token_id",
     // The server reads all other settings from the model's generation_config.json.
     .fixed = R"({"stream": false,
                  "generation_config": {"do_sample": true, "num_beams": 1, "top_k": 0, "top_p": 1.0,
                                        "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0,
                                        "eta_cutoff": 0.0, "repetition_penalty": 1.0,
                                        "no_repeat_ngram_size": 0, "min_length": 0}})",
     .json_text = "/generation_config",
     .choices = "",
     .text = "/choices/0/text",
     .token_ids = "",
     .id = "",
     .logprobs = "",
     .logprob = "",
     .finish = "/choices/0/finish_reason",
     .ended = "stop",
     .truncated = "length",
     .aborted = "",
     .returns_end = false,
     .prompt_ids = "",
     .num_prompt = "/usage/prompt_tokens",
     .load_model = "/load_model",
     .load_field = "/model",
     .unload_models = "/reset",
     .loads_beside = true,
     .load_adapter = "",
     .unload_adapter = "",
     .models = "",
     .pause = "",
     .reset_cache = "",
     .resume = "",
     .remedy = "Start transformers serve without a model, where it can read output_dir; the path "
               "of output_dir must have no @."},
    // OpenAI's interface has no token ids. Some programs add token ids.
    {.name = "openai",
     .path = "/v1/completions",
     .prompt = "/prompt",
     .length = "/max_tokens",
     .count = "/n",
     .model = "/model",
     .adapter = "",
     .temperature = "/temperature",
     .seed = "/seed",
     .ends = "",
     .fixed = R"({"logprobs": 1, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0})",
     .json_text = "",
     .choices = "/choices",
     .text = "",
     .token_ids = "/token_ids",
     .id = "",
     .logprobs = "/logprobs/token_logprobs",
     .logprob = "",
     .finish = "/finish_reason",
     .ended = "stop",
     .truncated = "length",
     .aborted = "",
     .returns_end = false,
     .prompt_ids = "",
     .num_prompt = "",
     .load_model = "",
     .load_field = "",
     .unload_models = "",
     .loads_beside = false,
     .load_adapter = "",
     .unload_adapter = "",
     .models = "",
     .pause = "",
     .reset_cache = "",
     .resume = "",
     .remedy = ""}};
std::vector<std::string_view> names_of_server_kinds();
/// Throws std::logic_error for an unknown name, which the configuration excludes.
const ServerKind& server_kind_named(std::string_view name);

/// How a server gets new weights.
enum class UpdateWay {
  kNone,     // the server keeps its weights
  kDisk,     // the server loads the saved model, in place of its weights or as another model
  kLora,     // the server loads the saved adapter under a new name
  kCommand,  // a user's command gives the server new weights
};
/// Values of rollout_update, in the order of the help.
inline constexpr std::string_view kUpdateWayNames[] = {"none", "disk", "lora", "command"};
std::vector<std::string_view> names_of_update_ways();
UpdateWay update_way_named(std::string_view name);

}  // namespace longspan
