#include "longspan/stages/row.h"

#include <stdexcept>

namespace longspan {
namespace {

/// True if the row holds document `number` of an example.
bool takes(Documents which, int number) {
  switch (which) {
    case Documents::kAll:
    case Documents::kPairs:
    case Documents::kRollouts:
      return true;
    case Documents::kFirst:
      return number == 0;
    case Documents::kSecond:
      return number == 1;
  }
  throw std::logic_error("documents of no kind");
}

/// `samples`: the documents in the row.
Batch collated(Documents which, const std::vector<const Example*>& examples,
               const std::vector<const Sample*>& samples) {
  switch (which) {
    case Documents::kAll:
      return collate_examples(examples);
    case Documents::kPairs:
      return collate_shared(examples, SharedTokens::kWithoutLabels);
    case Documents::kRollouts:
      return collate_shared(examples, SharedTokens::kWithOneLabel);
    case Documents::kFirst:
    case Documents::kSecond:
      return collate(samples);
  }
  throw std::logic_error("documents of no kind");
}

/// Returns the row's pictures, with the features that each rank's tokens want.
RowPictures with_wanted(const Batch& row, const SequenceParallel& attention) {
  RowPictures pictures = *row.pictures;
  const int64_t* feature = row.columns.at(kFeatureColumn).values.const_data_ptr<int64_t>();
  for (int rank = 0; rank < attention.sharers().size(); ++rank) {
    std::vector<int64_t>& wanted = pictures.wanted.emplace_back();
    for (const int64_t token : attention.token_order_of(rank, row.packing, 1).index) {
      if (token >= 0 && feature[token] >= 0) wanted.push_back(feature[token]);
    }
  }
  return pictures;
}

}  // namespace

Row make_row(const DrawnExamples& drawn, Documents which, SequenceParallel& attention,
             at::Device device) {
  Row row{drawn, /*documents=*/{}, /*whole=*/{}, /*local=*/{}, &attention};
  std::vector<const Sample*> samples;
  std::vector<const Example*> examples;
  for (const ExamplePointer& example : drawn.examples) {
    examples.push_back(example.get());
    const int num_documents = static_cast<int>(example->documents.size());
    for (int number = 0; number < num_documents; ++number) {
      if (!takes(which, number)) continue;
      row.documents.push_back({example.get(), number});
      samples.push_back(&example->documents[number]);
    }
  }
  row.whole = examples.empty() ? idle_row(drawn.pattern->documents.front())
                               : collated(which, examples, samples);
  row.local = local_share(row.whole, attention, device);
  return row;
}

int64_t Row::num_tokens() const {
  int64_t total = 0;
  for (const auto& [example, number] : documents) {
    total += std::ssize(example->documents[number].input_ids);
  }
  return total;
}

int64_t Row::num_computed_tokens() const { return examples.empty() ? 0 : whole.tokens_T.numel(); }

Batch local_share(const Batch& row, const SequenceParallel& attention, at::Device device) {
  Batch share = shard(row, attention.token_order(row.packing));
  if (row.pictures != nullptr && !row.pictures->pictures.empty()) {
    share.pictures = std::make_shared<RowPictures>(with_wanted(row, attention));
  }
  return on_device(share, device);
}

}  // namespace longspan
