// Operators of sessions: evaluation, answers and files.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <nlohmann/json.hpp>

#include "bindings/session_of_python.h"
#include "bindings/session_samples.h"
#include "longspan/base/user_error.h"
#include "longspan/report/averages.h"

namespace longspan {
namespace {

std::string object_of(const NamedMeans& means) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : means) object[name] = value;
  return object.dump();
}

/// Returns the loss, the numbers of samples and batches, the seconds, and the means as JSON.
std::tuple<double, int64_t, int64_t, double, std::string> session_evaluate(
    const SessionPointer& s, const std::vector<at::Tensor>& ids,
    const std::vector<at::Tensor>& labels, const std::vector<int64_t>& documents,
    const std::vector<int64_t>& desirable, const std::vector<std::string>& names,
    const std::vector<at::Tensor>& columns, const std::vector<std::string>& files,
    const std::vector<at::Tensor>& pixels, const std::vector<int64_t>& grids,
    const std::vector<int64_t>& num_pictures, int64_t batch_size) {
  using Result = std::tuple<double, int64_t, int64_t, double, std::string>;
  return s->call([&](Session& session) -> Result {
    std::vector<HeldPixels> held;
    const ExamplesInMemory examples(examples_of_python(
        {ids, labels, documents, desirable, names, columns, files, pixels, grids, num_pictures},
        s->pictures(), held));
    if (batch_size < 1) {
      throw UserError(fmt::format("batch_size: {}, and at least 1 is needed", batch_size));
    }
    const EvaluationResult result = session.evaluate(examples, batch_size).value();
    return {result.loss, result.num_samples, result.num_batches, result.seconds,
            object_of(result.means)};
  });
}

at::Tensor session_label_logprobs(const SessionPointer& s, const RowPointer& row) {
  return s->call([&](Session& session) { return session.label_logprobs(row->of(s)); });
}

std::string session_means(const SessionPointer& s) {
  return s->call([](Session& session) {
    const NamedMeans means = session.means();
    session.averages().clear();
    return object_of(means);
  });
}

const char* name_of_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kInterrupted:
      return "interrupted";
  }
  return "";
}

/// Returns the answers as JSON.
std::string session_generate(const SessionPointer& s, const std::vector<at::Tensor>& prompts,
                             bool do_sample, double temperature, int64_t top_k, double top_p,
                             double repetition_penalty, int64_t max_new_tokens,
                             const std::vector<int64_t>& end_tokens, int64_t seed, bool logprobs,
                             int64_t num_at_a_time) {
  return s->call([&](Session& session) {
    if (temperature <= 0 || top_k < 0 || top_p <= 0 || top_p > 1 || repetition_penalty <= 0 ||
        max_new_tokens < 1 || num_at_a_time < 1) {
      throw UserError(fmt::format(
          "temperature {}, top_k {}, top_p {}, repetition_penalty {}, max_new_tokens {}, "
          "num_at_a_time {}: temperature and repetition_penalty must be above 0, top_k at least 0, "
          "top_p above 0 and at most 1, max_new_tokens and num_at_a_time at least 1",
          temperature, top_k, top_p, repetition_penalty, max_new_tokens, num_at_a_time));
    }
    GenerationOptions options{.sampling = {.do_sample = do_sample,
                                           .temperature = temperature,
                                           .top_k = top_k,
                                           .top_p = top_p,
                                           .repetition_penalty = repetition_penalty},
                              .max_new_tokens = max_new_tokens,
                              .end_tokens = {},
                              .seed = static_cast<uint64_t>(seed),
                              .logprobs = logprobs};
    for (const int64_t token : end_tokens) options.end_tokens.insert(static_cast<int32_t>(token));
    std::vector<std::vector<int32_t>> ids;
    for (const at::Tensor& prompt : prompts) {
      ids.push_back(ids_of(prompt, fmt::format("prompt {}", ids.size())));
    }
    nlohmann::json answers = nlohmann::json::array();
    for (const Answer& answer : session.generate(ids, options, num_at_a_time)) {
      answers.push_back({{"tokens", answer.tokens},
                         {"reason", name_of_reason(answer.reason)},
                         {"end_token", nullptr},
                         {"logprobs", answer.logprobs}});
      if (answer.end_token) answers.back()["end_token"] = *answer.end_token;
    }
    return answers.dump();
  });
}

void session_save(const SessionPointer& s, const std::string& folder) {
  s->call([&](Session& session) { session.save(folder); });
}

std::string session_save_checkpoint(const SessionPointer& s, const std::string& folder,
                                    const std::string& source) {
  return s->call([&](Session& session) { return session.save_checkpoint(folder, source); });
}

std::string session_load_checkpoint(const SessionPointer& s, const std::string& checkpoint) {
  return s->call([&](Session& session) { return session.load_checkpoint(checkpoint); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  const auto define = [&](const std::string& name, const std::string& arguments,
                          const std::string& results, auto* function) {
    library.def(fmt::format("{}(__torch__.torch.classes.longspan.Session s{}) -> {}", name,
                            arguments, results)
                    .c_str(),
                function);
  };
  define("session_evaluate",
         ", Tensor[] ids, Tensor[] labels, int[] documents, int[] desirable, str[] names, "
         "Tensor[] columns, str[] files, Tensor[] pixels, int[] grids, int[] num_pictures, "
         "int batch_size",
         "(float, int, int, float, str)", session_evaluate);
  define("session_label_logprobs", ", __torch__.torch.classes.longspan.Row row", "Tensor",
         session_label_logprobs);
  define("session_means", "", "str", session_means);
  define("session_generate",
         ", Tensor[] prompts, bool do_sample, float temperature, int top_k, float top_p, "
         "float repetition_penalty, int max_new_tokens, int[] end_tokens, int seed, bool logprobs, "
         "int num_at_a_time",
         "str", session_generate);
  define("session_save", ", str folder", "()", session_save);
  define("session_save_checkpoint", ", str folder, str source", "str", session_save_checkpoint);
  define("session_load_checkpoint", ", str checkpoint", "str", session_load_checkpoint);
}

}  // namespace longspan
