#include "longspan/data/example_set.h"

#include <utility>

namespace longspan {

ExamplesInMemory::ExamplesInMemory(std::vector<Example> examples, int64_t first_number) {
  for (Example& example : examples) example.number = first_number++;
  examples_ = std::make_shared<const std::vector<Example>>(std::move(examples));
}

ExamplePointer ExamplesInMemory::example(int64_t place) const {
  return {examples_, &examples_->at(place)};
}

ExamplePointer JoinedExamples::example(int64_t place) const {
  return place < first_.size() ? first_.example(place) : second_.example(place - first_.size());
}

DrawnExamples draw(const ExampleSet& examples, const std::vector<int64_t>& places) {
  DrawnExamples drawn;
  for (const int64_t place : places) drawn.examples.push_back(examples.example(place));
  drawn.pattern = places.empty() ? examples.example(0) : drawn.examples.front();
  return drawn;
}

DrawnExamples examples_of(std::vector<Sample> samples) {
  DrawnExamples drawn;
  for (Sample& sample : samples) {
    auto example = std::make_shared<Example>();
    example->documents.push_back(std::move(sample));
    drawn.examples.push_back(std::move(example));
  }
  return drawn;
}

}  // namespace longspan
