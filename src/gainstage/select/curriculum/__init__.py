"""Which problems now: choice by what is known of their difficulty."""
