// Prints what a configuration's rows become: a JSON line for each example of the training rows, so
// that the Python tests can compare them: {"documents": [{"input_ids", "labels"}, ...],
// "positions", "desirable", "description"}, and the first document's input_ids and labels beside
// them. What packing did goes to stderr. data_probe config.json [key=value ...]
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/config/config.h"
#include "longspan/config/user_error.h"
#include "longspan/data/dataset.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/example_encoder.h"
#include "longspan/text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace longspan;
  try {
    const Config config =
        load_config(argc > 1 ? argv[1] : "", {argv + std::min(argc, 2), argv + argc});
    const Tokenizer tokenizer = Tokenizer::load(config.model_name_or_path);
    const EncodedExamples encoded = encode_examples(config, tokenizer, read_run_rows(config).train);
    for (const Example& example : encoded.examples) {
      nlohmann::json line = {{"input_ids", example.documents[0].input_ids},
                             {"labels", example.documents[0].labels},
                             {"desirable", example.desirable},
                             {"description", describe_example(example, config.stage, tokenizer)}};
      for (const Sample& document : example.documents) {
        line["documents"].push_back(
            {{"input_ids", document.input_ids}, {"labels", document.labels}});
      }
      const Batch row = collate_examples({&example});
      const int64_t* positions = row.positions_T.const_data_ptr<int64_t>();
      line["positions"] = std::vector<int64_t>(positions, positions + row.packing.num_tokens());
      fmt::print("{}\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    }
    if (encoded.packing) fmt::print(stderr, "{}\n", encoded.packing->text());
  } catch (const UserError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
