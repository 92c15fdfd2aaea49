// A training loop of one's own, with a loss that `longspan train` does not have: each token of a
// row has a weight. Trains one row a step, prints the losses, and saves the model.
//
//   cmake --build build --target example_library
//   build/example_library config.yaml rows.jsonl FOLDER
//
// A line of rows.jsonl is a row: {"ids": [5, 17, ...], "weights": [0.0, 1.0, ...]}. The
// configuration has model_name_or_path and settings such as learning_rate, bf16 or finetuning_type.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "longspan/account/memory_model.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/liveness/run_control.h"
#include "longspan/report/console.h"
#include "longspan/session/session.h"
#include "longspan/text/print.h"

using namespace longspan;

void train(const std::string& config_file, const std::string& rows_file,
           const std::string& folder) {
  const Config config = load_session_config(config_file, {});
  Console console;  // prints the session's events
  Session session(config,
                  {.machine = {.find_gpus = find_gpus, .num_threads = at::get_num_threads()},
                   .events = &console});
  std::ifstream lines(rows_file);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    Sample sample;
    sample.input_ids = sample.labels = json.at("ids").get<std::vector<int32_t>>();
    // The loss of a token is computed at the token before it, so its weight stands there.
    auto weights = json.at("weights").get<std::vector<double>>();
    weights.erase(weights.begin());
    weights.push_back(0.0);
    sample.columns["weight"] = {.values = at::tensor(weights, at::kDouble)};
    const std::vector<Row> rows{session.row({sample})};
    // The denominator is over the global batch: with data parallelism, over all groups' rows.
    const double total =
        session.sum_over_groups(std::accumulate(weights.begin(), weights.end(), 0.0));

    const LossOfCaller weighted{.of_row = [&](const LossInput& input) {
      const at::Tensor all_T = input.row.local.columns.at("weight").values;
      return -(all_T.index_select(0, input.places_L) * input.logprobs_L).sum() / total;
    }};
    const RowLosses losses = session.forward_backward(rows, weighted);
    const double loss = session.sum_up(losses).loss();
    const double norm = session.reduce();
    session.clip(norm, config.optimization.max_grad_norm);
    session.update(config.optimization.learning_rate);
    print_out("step {}: loss {:.17g}, gradient norm {:.6g}\n", session.step(), loss, norm);
  }
  session.save(folder);
}

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw std::runtime_error("usage: example_library config.yaml rows.jsonl FOLDER");
    train(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    print_err("error: {}\n", error.what());
    return 1;
  }
}
