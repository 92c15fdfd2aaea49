// Prints what a configuration's rows become: a JSON line {"input_ids", "labels", "description"} for
// each training row, so that the Python tests can compare them. data_probe config.json [key=value
// ...]
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/config/config.h"
#include "longspan/config/user_error.h"
#include "longspan/data/dataset.h"
#include "longspan/data/describe_sample.h"
#include "longspan/text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace longspan;
  try {
    const Config config =
        load_config(argc > 1 ? argv[1] : "", {argv + std::min(argc, 2), argv + argc});
    const Tokenizer tokenizer = Tokenizer::load(config.model_name_or_path);
    const SftEncoder encoder(config, tokenizer);
    for (const Sample& sample : encoder.encode_all(read_run_rows(config).train)) {
      const nlohmann::json line = {{"input_ids", sample.input_ids},
                                   {"labels", sample.labels},
                                   {"description", describe_sample(sample, tokenizer)}};
      fmt::print("{}\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    }
  } catch (const UserError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
