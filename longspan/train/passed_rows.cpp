#include "longspan/train/passed_rows.h"

#include <fmt/format.h>

#include "longspan/data/describe_sample.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"

namespace longspan {

DataNote say_rows(const RowSettings& config, const ModelConfig& model,
                  const LocalTime& template_time, const PassedRows& rows, Events& events) {
  if (rows.train_set.first) {
    events.say(
        fmt::format("The first training example (`longspan data` shows more, with colours):\n{}\n",
                    describe_example(*rows.train_set.first, config.method.stage, rows.tokenizer)));
  }
  if (rows.train.packing && !config.data.streaming) events.say(rows.train.packing->text());
  DataNote data;
  data.chat =
      say_data(config, model, template_time,
               DataFacts{rows.tokenizer, rows.notes, rows.have_tools, rows.first, rows.train,
                         rows.eval, rows.train_set.long_rows, rows.eval_set.long_rows},
               events);
  data.num_train = rows.train_set.size;
  if (!config.data.dataset.empty()) data.fingerprint = rows.train_set.fingerprint.value();
  data.eval_fingerprint = rows.eval_set.fingerprint.value();
  return data;
}

}  // namespace longspan
