// SHA-256 (FIPS 180-4), for the digests of payloads in the oracle's lines.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

class Sha256 {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    void block(const unsigned char *bytes) {
        static const uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        uint32_t w[64], v[8];
        for (int i = 0; i < 16; i++)
            w[i] = uint32_t(bytes[4 * i]) << 24 | bytes[4 * i + 1] << 16 | bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
                   (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
        }
        std::memcpy(v, state, sizeof v);
        for (int i = 0; i < 64; i++) {
            uint32_t e = v[4], a = v[0];
            uint32_t first = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
            uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                              ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
            std::memmove(v + 1, v, 7 * sizeof *v);
            v[4] += first;
            v[0] = first + second;
        }
        for (int i = 0; i < 8; i++) state[i] += v[i];
    }

public:
    static std::string hex(const unsigned char *bytes, uint64_t length) {
        Sha256 hash;
        uint64_t at = 0;
        for (; at + 64 <= length; at += 64) hash.block(bytes + at);
        unsigned char last[128] = {};
        uint64_t rest = length - at, end = rest < 56 ? 64 : 128;
        if (rest) std::memcpy(last, bytes + at, rest);
        last[rest] = 0x80;
        for (int i = 0; i < 8; i++) last[end - 1 - i] = static_cast<unsigned char>(length * 8 >> 8 * i);
        for (at = 0; at < end; at += 64) hash.block(last + at);
        char text[65];
        for (int i = 0; i < 8; i++) std::snprintf(text + 8 * i, 9, "%08x", hash.state[i]);
        return text;
    }
};
