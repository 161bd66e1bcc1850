// Writes the hostile files of one kind into a folder, as seeds of the fuzzers.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tests/hostile/hostile.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: write_hostile_files KIND FOLDER\n";
    return 2;
  }
  constexpr size_t kMostBytes = size_t{64} << 10;  // of a fuzzer's seed
  const std::string kind = argv[1];
  const std::filesystem::path folder = argv[2];
  std::filesystem::create_directories(folder);
  size_t number = 0;
  for (const auto& set : cleave::test::hostile_sets()) {
    if (set.kind != kind) continue;
    for (const auto& c : set.cases) {
      if (c.make || c.bytes.size() > kMostBytes) continue;
      std::ofstream file(folder / std::to_string(number++), std::ios::binary);
      if (!(file << c.bytes).flush()) {
        std::cerr << "write_hostile_files: " << folder << " cannot be written\n";
        return 1;
      }
    }
  }
  std::cout << number << " files\n";
}
